//! How to test *your* code under lock loss: a job runner whose process stands still in the middle.
//!
//! `cargo run --example job_runner`. Masters and time are simulated: 15 s are over in no time.
#![allow(clippy::print_stdout, reason = "it shows what happens")]
use std::{error::Error, time::Duration};

use quorumlock::{AcquireError, Redlock, sim::SimCluster};
use tokio::time::{Instant, sleep};

const STEPS: u32 = 5;
const STEP: Duration = Duration::from_secs(1);

/// One replica of a service. From here to `main` nothing knows that it is simulated.
struct JobRunner {
    replica: &'static str,
    redlock: Redlock,
    started: Instant,
}

#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Finished,
    LostBefore { step: u32 },
}

impl JobRunner {
    /// Does the job once, under the lock, and begins no step for which the lock may not last.
    async fn run(&self) -> Result<Ended, AcquireError> {
        let guard = self.redlock.acquire("nightly-report").await?;
        self.say(&format!("has the lock for {:?}", guard.remaining()));
        for step in 1..=STEPS {
            if guard.remaining() < STEP {
                self.say(&format!("has lost the lock, stops before step {step}"));
                return Ok(Ended::LostBefore { step });
            }
            self.say(&format!("begins step {step}"));
            // The work. What is paused in here goes on afterwards without having looked again, so
            // what it writes must be of a kind that can be refused or repeated.
            sleep(STEP).await;
        }
        match guard.release().await {
            Ok(()) => self.say("has finished and released"),
            Err(error) => self.say(&format!("has finished, but: {error}")),
        }
        Ok(Ended::Finished)
    }

    fn say(&self, what: &str) {
        say(self.started, &format!("{} {what}", self.replica));
    }
}

fn say(started: Instant, what: &str) {
    println!("[{:>6.3} s] {what}", started.elapsed().as_secs_f64());
}

// With a paused clock, time goes by when everybody waits; each run is the same.
#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let cluster = SimCluster::new(5);
    // Two processes, each with connections of its own.
    let (process_a, process_b) = (cluster.client(), cluster.client());
    let redlock = Redlock::builder().new_fleet().sim_client(&process_a).connect().await?;
    let a = JobRunner { replica: "a", redlock, started };
    let redlock = Redlock::builder().new_fleet().sim_client(&process_b).connect().await?;
    let b = JobRunner { replica: "b", redlock, started };

    let trouble = async {
        sleep(Duration::from_millis(2_500)).await;
        say(started, "(the process of a stands still)");
        process_a.pause();
        sleep(Duration::from_secs(10)).await;
        say(started, "(the process of a goes on)");
        process_a.resume();
    };
    let (a, b, ()) = tokio::join!(process_a.run(a.run()), process_b.run(b.run()), trouble);

    // What your test is about. `None` would mean that the process was killed.
    assert_eq!(a.transpose()?, Some(Ended::LostBefore { step: 4 }));
    assert_eq!(b.transpose()?, Some(Ended::Finished));
    assert!(cluster.broken_assumptions().is_empty(), "a pause is not the lock's fault");
    println!("the job was done once from beginning to end, by b");
    Ok(())
}
