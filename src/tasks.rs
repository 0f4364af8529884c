//! What the rest of the library gets from the machine: the one place that starts tasks, so that each
//! has an owner and an end, with the clock and the chance that they use.

use tokio::{runtime::Handle, task::JoinHandle};

use crate::{clock::Clock, entropy::Entropy};

/// What a `Redlock` gets from the machine that it runs on.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) spawner: Spawner,
    pub(crate) clock: Clock,
    pub(crate) entropy: Entropy,
}

/// Starts a `Redlock`'s tasks on its runtime.
#[derive(Clone, Debug)]
pub(crate) struct Spawner {
    runtime: Handle,
    #[cfg(feature = "sim")]
    gate: Option<crate::gate::Gate>,
}

impl Spawner {
    /// Starts tasks on `runtime`.
    pub(crate) fn new(runtime: Handle) -> Self {
        Self {
            runtime,
            #[cfg(feature = "sim")]
            gate: None,
        }
    }

    /// Starts tasks that stand still while `gate` is closed.
    #[cfg(feature = "sim")]
    pub(crate) fn gated(runtime: Handle, gate: crate::gate::Gate) -> Self {
        Self { runtime, gate: Some(gate) }
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that starts tasks")]
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        #[cfg(feature = "sim")]
        if let Some(gate) = &self.gate {
            let task = gate.guard(task);
            return self.runtime.spawn(async move {
                task.await;
            });
        }
        self.runtime.spawn(task)
    }
}
