//! A slice of the history campaign. Needs root, `mkfs.xfs`, `xfs_repair` and a kernel with XFS.
#![forbid(unsafe_code)]

use clap::Parser;
use witness::history::{self, crash, recover, replay};
use witness::{leftovers, torture};

#[derive(Parser)]
struct Cli<A: clap::Args> {
    #[command(flatten)]
    args: A,
}

fn parsed<A: clap::Args>(arguments: &str) -> A {
    Cli::parse_from(std::iter::once("witness").chain(arguments.split_whitespace())).args
}

fn histories(arguments: &str) -> bool {
    history::run(&parsed(arguments)).unwrap()
}

fn replays(arguments: &str) -> bool {
    replay::run(&parsed(arguments)).unwrap()
}

/// The model is proven on what it models: the kernel must agree with it at every step.
#[test]
#[ignore = "needs root and xfsprogs"]
fn the_kernel_agrees_with_the_model() {
    assert!(histories("--target kernel --seed 1 --ops 1500 --geometry default,b1024,today"));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn the_kernel_agrees_with_the_model_where_space_runs_out() {
    assert!(histories("--target kernel --seed 2 --ops 2000 --geometry tight-b1024,tight-today --threads 2"));
}

/// So is what is asked of a journal: the kernel's own must give it.
#[test]
#[ignore = "needs root and xfsprogs"]
fn the_kernel_recovers_its_own_volumes() {
    assert!(replays(
        "--target kernel --seed 1 --runs 2 --ops 600 --geometry default,small-log-b1024 --threads 2"
    ));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn uxfs_agrees_with_the_model() {
    assert!(histories("--target uxfs --seed 26 --ops 1500 --geometry b1024,small-log"));
    assert!(histories("--target uxfs --seed 31 --ops 1500 --threads 4 --geometry default,today-b1024"));
}

#[test]
#[ignore = "needs root and xfsprogs"]
fn the_kernel_recovers_what_uxfs_left() {
    assert!(replays("--target uxfs --seed 4 --runs 3 --ops 1200 --geometry default,today-small-log"));
}

/// What the kernel's recovery makes of a volume, uxfs's own must make of it too, whoever left it.
#[test]
#[ignore = "needs root and xfsprogs"]
fn uxfs_recovers_as_the_kernel_does() {
    let recovers = |arguments: &str| recover::run(&parsed(arguments)).unwrap();
    assert!(recovers("--target kernel --seed 21 --runs 2 --ops 900 --geometry default,small-log-b1024"));
    assert!(recovers("--target uxfs --seed 23 --runs 2 --ops 900 --geometry b1024,small-log,today"));
}

/// What the kernel was in the midst of, uxfs finishes as the kernel does.
#[test]
#[ignore = "needs root and xfsprogs"]
fn uxfs_finishes_what_the_kernel_left() {
    let leaves = |arguments: &str| leftovers::run(&parsed(arguments)).unwrap();
    assert!(leaves("--threads 2 --geometry stable-small-log,exchange"));
}

/// At every flush of a run, with what was not flushed lost, kept, or any part of it, and again amid the recovery.
#[test]
#[ignore = "needs root and xfsprogs"]
fn uxfs_recovers_from_power_cuts() {
    let crashes = |arguments: &str| crash::run(&parsed(arguments)).unwrap();
    assert!(crashes("--seed 5 --ops 120 --threads 2 --geometry small-log --samples 10 --kernel 2 --again 2"));
}

/// The same amid chains of deferred work.
#[test]
#[ignore = "needs root and xfsprogs"]
fn uxfs_finishes_the_chains_that_it_left() {
    let crashes = |arguments: &str| crash::run(&parsed(arguments)).unwrap();
    assert!(crashes("--seed 6 --ops 120 --threads 2 --geometry today --samples 5 --kernel 2 --chains 100"));
}

/// Threads that do everything to one file and its clones, and power cuts.
#[test]
#[ignore = "needs root and xfsprogs"]
fn one_file_is_tortured() {
    let tortures = |arguments: &str| torture::run(&parsed(arguments)).unwrap();
    assert!(tortures("--seed 2 --ops 600 --threads 3 --geometry today,rmapbt-b1024 --cuts 10 --kernel 2"));
}
