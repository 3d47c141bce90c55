//! The command `witness`: one subcommand a witness. `witness help` lists them.
//!
//! Exit code 0: the witness has nothing against it; 1: it has; 2: it could not do its work.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use witness::{
    changes, check, compare, damage, engine, fill, from, fsx, full, history, hostile, kernel, leftovers,
    linear, matrix, quota, recover_time, scale, torture, v4, vm,
};

/// Outside witnesses for uxfs.
#[derive(Parser)]
#[command(name = "witness")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Each subcommand keeps its arguments, and its `run`, in its own module.
#[derive(Subcommand)]
enum Command {
    Fault(history::fault::Args),
    Fill(fill::Args),
    From(from::Args),
    Fsx(fsx::Args),
    Full(full::Args),
    ManifestKernel(kernel::Args),
    ManifestUxfs(engine::Args),
    Compare(compare::Args),
    Crash(history::crash::Args),
    Damage(damage::Args),
    History(history::Args),
    Changes(changes::Args),
    Hostile(hostile::Args),
    Check(check::Args),
    Kill(history::kill::Args),
    Leftovers(leftovers::Args),
    Linear(linear::Args),
    Matrix(matrix::Args),
    Quota(quota::Args),
    Recover(history::recover::Args),
    RecoverTime(recover_time::Args),
    Replay(history::replay::Args),
    Scale(scale::Args),
    Torture(torture::Args),
    V4(v4::Args),
    #[command(hide = true)]
    DamageWorker(damage::WorkerArgs),
    #[command(hide = true)]
    KillWorker(history::kill::WorkerArgs),
    #[command(hide = true)]
    QuotaGuest(quota::GuestArgs),
    #[command(hide = true)]
    ScaleStep(scale::StepArgs),
    #[command(hide = true)]
    VmGuest(vm::GuestArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Fault(args) => history::fault::run(&args),
        Command::Fill(args) => fill::run(&args),
        Command::From(args) => from::run(&args),
        Command::Fsx(args) => fsx::run(&args),
        Command::Full(args) => full::run(&args),
        Command::ManifestKernel(args) => kernel::run(&args),
        Command::ManifestUxfs(args) => engine::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Crash(args) => history::crash::run(&args),
        Command::Changes(args) => changes::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Damage(args) => damage::run(&args),
        Command::DamageWorker(args) => damage::work(&args),
        Command::History(args) => history::run(&args),
        Command::Hostile(args) => hostile::run(&args),
        Command::Kill(args) => history::kill::run(&args),
        Command::KillWorker(args) => history::kill::work(&args),
        Command::Leftovers(args) => leftovers::run(&args),
        Command::Linear(args) => linear::run(&args),
        Command::Matrix(args) => matrix::run(&args),
        Command::Quota(args) => quota::run(&args),
        Command::QuotaGuest(args) => quota::guest(&args),
        Command::Recover(args) => history::recover::run(&args),
        Command::RecoverTime(args) => recover_time::run(&args),
        Command::Replay(args) => history::replay::run(&args),
        Command::Scale(args) => scale::run(&args),
        Command::ScaleStep(args) => scale::step(&args),
        Command::Torture(args) => torture::run(&args),
        Command::V4(args) => v4::run(&args),
        Command::VmGuest(args) => vm::guest(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("witness: {error:#}");
            ExitCode::from(2)
        }
    }
}
