//! A slice of the history campaign. Needs root, `mkfs.xfs`, `xfs_repair` and a kernel with XFS.

use clap::Parser;
use witness::history::{Args, run};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn histories(arguments: &str) -> bool {
    let words = std::iter::once("history").chain(arguments.split_whitespace());
    run(&Cli::parse_from(words).args).unwrap()
}

/// The model is proven on what it models: the kernel must agree with it at every step.
#[test]
fn the_kernel_agrees_with_the_model() {
    assert!(histories("--target kernel --seed 1 --ops 1500 --geometry default,b1024"));
}

#[test]
fn the_kernel_agrees_with_the_model_where_space_runs_out() {
    assert!(histories("--target kernel --seed 2 --ops 2000 --geometry tight-b1024 --threads 2"));
}
