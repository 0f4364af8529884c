//! A client process that can be stopped, in the simulation: its tasks stand still while time goes on.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

/// Holds back the tasks of one client process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    position: Position,
    waiting: Vec<Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    #[default]
    Open,
    Closed,
    /// The process is dead: its tasks are dropped at their next step.
    Dead,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, position: Position) {
        let waiting = {
            let mut state = self.state();
            // Nobody comes back from the dead.
            if state.position != Position::Dead {
                state.position = position;
            }
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// All tasks stand still from their next step on.
    pub(crate) fn close(&self) {
        self.turn(Position::Closed);
    }

    /// All tasks go on.
    pub(crate) fn open(&self) {
        self.turn(Position::Open);
    }

    /// All tasks end at their next step, wherever they are.
    pub(crate) fn kill(&self) {
        self.turn(Position::Dead);
    }

    /// A task of this process. `None`: the process died before the task had ended.
    pub(crate) fn guard<F: Future>(&self, task: F) -> Gated<F> {
        Gated { gate: self.clone(), task: Some(Box::pin(task)) }
    }
}

/// A task that only goes on while its gate is open.
#[derive(Debug)]
pub(crate) struct Gated<F> {
    gate: Gate,
    task: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for Gated<F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let position = {
            let mut state = this.gate.state();
            // Remembered at every step: a task that waits for something else has to hear of its death.
            if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiting.push(cx.waker().clone());
            }
            state.position
        };
        match (position, &mut this.task) {
            (Position::Dead, task) => {
                *task = None;
                Poll::Ready(None)
            }
            (Position::Closed, _) => Poll::Pending,
            (Position::Open, None) => Poll::Ready(None),
            (Position::Open, Some(task)) => task.as_mut().poll(cx).map(Some),
        }
    }
}
