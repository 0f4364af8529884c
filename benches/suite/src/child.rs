//! Clients in processes of their own: this program again, told what to do by its arguments.
//!
//! A child says `ready`, waits for a line, does its part, and prints what it measured, a line for each.

use std::{
    env,
    io::{self, BufRead, BufReader, Lines, Write},
    process::{Child, ChildStdout, Stdio},
};

use crate::support::process::{mortal_command, spawn};

/// The first argument of a child.
pub const ARGUMENT: &str = "--child";

/// A child that runs. Killed when dropped, if it has not ended.
pub struct Running {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    pub fn start(arguments: &[&str]) -> Self {
        let mut command = mortal_command(env::current_exe().expect("this program"));
        command.arg(ARGUMENT).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = spawn(command);
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        Self { process, lines }
    }

    /// The next line it prints.
    pub fn line(&mut self) -> String {
        self.lines.next().expect("a child that goes on").expect("text")
    }

    /// Waits until it is ready.
    pub fn ready(&mut self) {
        assert_eq!(self.line(), "ready");
    }

    /// Lets it begin.
    pub fn go(&mut self) {
        let stdin = self.process.stdin.as_mut().expect("piped");
        stdin.write_all(b"go\n").expect("a child that listens");
    }

    /// All lines until it ends.
    pub fn rest(mut self) -> Vec<String> {
        self.lines.by_ref().map(|line| line.expect("text")).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// In a child: says that it is ready and waits to be told to begin.
pub fn ready() {
    println!("ready");
    io::stdout().flush().ok();
    io::stdin().read_line(&mut String::new()).ok();
}
