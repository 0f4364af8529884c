//! All that can happen next, and what comes of it.

use stateright::{Model, Property};

use super::{
    Attempt, Back, Disk, Node, Variant,
    state::{Phase, State},
};
use crate::fencing_token::FencingToken;

/// A search: a variant, and where it begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search<const N: usize, const K: usize> {
    pub(super) variant: Variant,
    /// It begins with every combination of counters from 0 to this.
    pub(super) counters: u64,
    /// States that differ in the order of the nodes only are one. Stories are easier without.
    pub(super) nodes_are_alike: bool,
    /// Whether the max has to be ahead, from which the other properties follow.
    pub(super) has_to_be_ahead: bool,
}

/// One step. `n` is a node, `k` an attempt, `read` the set of the other nodes that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action<const N: usize> {
    Begin {
        k: Attempt,
    },
    Acquire {
        n: usize,
        k: Attempt,
    },
    /// The second half of an acquire that is torn.
    Count {
        n: usize,
        k: Attempt,
    },
    /// The client takes its token from the grants that are at hand.
    Decide {
        k: Attempt,
        grants: [u64; N],
        token: u64,
    },
    Raise {
        n: usize,
        k: Attempt,
    },
    Refill {
        n: usize,
        k: Attempt,
    },
    CounterVanishes {
        n: usize,
    },
    OtherResource {
        n: usize,
    },
    WriteOut {
        n: usize,
    },
    Crash {
        n: usize,
        is_empty: bool,
        read: u8,
    },
    Return {
        n: usize,
        read: u8,
    },
}

impl<const N: usize, const K: usize> Model for Search<N, K> {
    type State = State<N, K>;
    type Action = Action<N>;

    fn init_states(&self) -> Vec<Self::State> {
        let acquires = if self.variant.resent { 2 } else { 1 };
        let mut states: Vec<Self::State> = Vec::new();
        let choices = self.counters + 1;
        for combination in 0..choices.pow(u32::try_from(N).unwrap()) {
            let digit = |place: usize| combination / choices.pow(u32::try_from(place).unwrap());
            let counters: [u64; N] = std::array::from_fn(|place| digit(place) % choices);
            let Variant { faults, step, .. } = self.variant;
            let state = self.alike(State::new(counters, acquires, faults, step));
            if !states.contains(&state) {
                states.push(state);
            }
        }
        states
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>) {
        let begun = |k: &Attempt| state.attempts[usize::from(*k)].phase != Phase::Idle;
        let attempts = || (0..u8::try_from(K).unwrap()).filter(begun);
        let next = attempts().count();
        if next < K {
            actions.push(Action::Begin { k: u8::try_from(next).unwrap() });
        }
        for k in attempts() {
            self.decisions(state, k, actions);
            for n in 0..N {
                actions.push(Action::Acquire { n, k });
                actions.push(Action::Count { n, k });
                actions.push(Action::Raise { n, k });
                actions.push(Action::Refill { n, k });
            }
        }
        for n in 0..N {
            actions.push(Action::CounterVanishes { n });
            actions.push(Action::OtherResource { n });
            self.crashes(state, n, actions);
        }
    }

    fn next_state(&self, last: &Self::State, action: Self::Action) -> Option<Self::State> {
        let mut state = *last;
        match action {
            Action::Begin { k } => {
                let before = state.acquired().map(|attempt| attempt.token).max().unwrap_or(0);
                let attempt = &mut state.attempts[usize::from(k)];
                (attempt.phase, attempt.before) = (Phase::Asking, before);
            }
            Action::Acquire { n, k } => self.acquire(&mut state, n, k)?,
            Action::Count { n, k } => self.count(&mut state, n, k)?,
            Action::Decide { k, grants, token } => self.decide(&mut state, k, &grants, token),
            Action::Raise { n, k } => self.raise(&mut state, n, k)?,
            Action::Refill { n, k } => self.refill(&mut state, n, k)?,
            Action::CounterVanishes { n } => {
                fault(&mut state.faults, self.variant.counters_vanish)?;
                state.nodes[n].node.counter_vanishes();
                if state.nodes == last.nodes {
                    return None;
                }
            }
            Action::OtherResource { n } => {
                fault(&mut state.faults, self.variant.other_resources)?;
                let node = &mut state.nodes[n].node;
                let mut other = Node { lock: None, fence: None, ..*node };
                (self.variant.protocol.acquire)(&mut other, 0).ok()?;
                node.max = other.max;
            }
            Action::WriteOut { n } => self.write_out(&mut state, n),
            Action::Crash { n, is_empty, read } => self.crash(&mut state, n, is_empty, read)?,
            Action::Return { n, read } => self.come_back(&mut state, n, read)?,
        }
        let state = self.alike(state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("unique", |_, state: &State<N, K>| state.is_unique()),
            Property::always("order", |_, state: &State<N, K>| state.is_ordered()),
            Property::always("ahead", |search: &Self, state: &State<N, K>| {
                !search.has_to_be_ahead || state.is_ahead()
            }),
            // A search in which nobody gets there would show nothing.
            Property::sometimes("all acquire", |_, state: &State<N, K>| {
                state.acquired().count() == K
            }),
        ]
    }
}

fn some(number: u64) -> Option<FencingToken> {
    (number > 0).then_some(FencingToken::new(number))
}

/// One fault fewer is left, if this one may happen at all.
fn fault(left: &mut u8, may_happen: bool) -> Option<()> {
    *left = left.checked_sub(1).filter(|_| may_happen)?;
    Some(())
}

impl<const N: usize, const K: usize> Search<N, K> {
    fn alike(&self, state: State<N, K>) -> State<N, K> {
        if self.nodes_are_alike { state.sorted() } else { state }
    }

    /// Every quorum of the grants that were answered, and every token that may be taken from it.
    fn decisions(&self, state: &State<N, K>, k: Attempt, actions: &mut Vec<Action<N>>) {
        if state.attempts[usize::from(k)].phase != Phase::Asking {
            return;
        }
        let mut at_hand = vec![[0; N]];
        for (n, server) in state.nodes.iter().enumerate() {
            for number in server.with[usize::from(k)].grants() {
                let without: Vec<[u64; N]> =
                    at_hand.iter().filter(|grants| grants[n] == 0).copied().collect();
                at_hand.extend(without.into_iter().map(|mut grants| {
                    grants[n] = number;
                    grants
                }));
            }
        }
        for grants in at_hand {
            for token in (self.variant.protocol.tokens)(&grants.map(some)) {
                actions.push(Action::Decide { k, grants, token: token.get() });
            }
        }
    }

    fn crashes(&self, state: &State<N, K>, n: usize, actions: &mut Vec<Action<N>>) {
        let Some(crash) = self.variant.crash else { return };
        // Every set of the other nodes that may be read.
        let voting =
            |set: u8| (0..N).all(|m| set >> m & 1 == 0 || (m != n && !state.nodes[m].is_away));
        let readable = || (0..1_u8 << N).filter(|set| voting(*set));
        let sets = |reads: bool| readable().take(if reads { usize::MAX } else { 1 });
        if state.nodes[n].is_away {
            let reads = matches!(crash.back, Back::Reads | Back::WaitsThenReads);
            actions.extend(sets(reads).map(|read| Action::Return { n, read }));
            return;
        }
        if crash.disk != Disk::Empty {
            actions.push(Action::WriteOut { n });
        }
        for read in sets(crash.back == Back::ReadsThenWaits) {
            if matches!(crash.disk, Disk::Empty | Disk::EmptyOrStale) {
                actions.push(Action::Crash { n, is_empty: true, read });
            }
            if crash.disk != Disk::Empty {
                actions.push(Action::Crash { n, is_empty: false, read });
            }
        }
    }

    fn acquire(&self, state: &mut State<N, K>, n: usize, k: Attempt) -> Option<()> {
        let server = &mut state.nodes[n];
        let exchange = &mut server.with[usize::from(k)];
        if server.is_away || exchange.acquires == 0 || exchange.is_torn {
            return None;
        }
        server.node.lock_vanishes();
        if self.variant.torn {
            server.node.lock = Some(k);
            exchange.is_torn = true;
            return Some(());
        }
        let granted = (self.variant.protocol.acquire)(&mut server.node, k).ok()??;
        exchange.acquires -= 1;
        exchange.unanswered_grant = granted.get();
        self.answer(state, n);
        Some(())
    }

    fn count(&self, state: &mut State<N, K>, n: usize, k: Attempt) -> Option<()> {
        let server = &mut state.nodes[n];
        let exchange = &mut server.with[usize::from(k)];
        if !std::mem::take(&mut exchange.is_torn) {
            return None;
        }
        let lock = server.node.lock.take();
        let granted = (self.variant.protocol.acquire)(&mut server.node, k).ok()??;
        server.node.lock = lock;
        exchange.acquires -= 1;
        exchange.unanswered_grant = granted.get();
        self.answer(state, n);
        Some(())
    }

    fn decide(&self, state: &mut State<N, K>, k: Attempt, grants: &[u64; N], token: u64) {
        let attempt = &mut state.attempts[usize::from(k)];
        (attempt.phase, attempt.token) = (Phase::Raising, token);
        let asked = (self.variant.protocol.to_raise)(&grants.map(some), FencingToken::new(token));
        for (n, number) in grants.iter().enumerate() {
            let exchange = state.exchange(n, k);
            // A node whose grant comes later is asked then. Whether it grants is its own affair:
            // it does not raise for whom it did not grant to.
            let comes_later = *number == 0 && !self.variant.asks_first_quorum_only;
            exchange.is_asked = asked.contains(&n) || comes_later;
            exchange.vouched = if exchange.is_asked { 0 } else { *number };
        }
        self.settle(state, k);
    }

    fn raise(&self, state: &mut State<N, K>, n: usize, k: Attempt) -> Option<()> {
        let token = FencingToken::new(state.attempts[usize::from(k)].token);
        let server = &mut state.nodes[n];
        let exchange = &mut server.with[usize::from(k)];
        if server.is_away || !exchange.is_asked {
            return None;
        }
        let raised = (self.variant.protocol.raise)(&mut server.node, (k, token)).ok()?;
        exchange.unanswered_raise |= raised;
        self.answer(state, n);
        raised.then_some(())
    }

    fn refill(&self, state: &mut State<N, K>, n: usize, k: Attempt) -> Option<()> {
        let attempt = state.attempts[usize::from(k)];
        let server = &mut state.nodes[n];
        if !self.variant.refills || attempt.phase != Phase::Acquired || server.is_away {
            return None;
        }
        server.node.lock_vanishes();
        let token = FencingToken::new(attempt.token);
        (self.variant.protocol.refill)(&mut server.node, (k, token)).ok()?.then_some(())
    }

    /// What was executed is answered: at once, unless it has to be written out first.
    fn answer(&self, state: &mut State<N, K>, n: usize) {
        if self.variant.crash.is_some_and(|crash| crash.disk == Disk::Durable) {
            return;
        }
        self.answer_all(state, n);
    }

    fn answer_all(&self, state: &mut State<N, K>, n: usize) {
        for k in 0..u8::try_from(K).unwrap() {
            let token = state.attempts[usize::from(k)].token;
            let exchange = state.exchange(n, k);
            exchange.answer_grant();
            if std::mem::take(&mut exchange.unanswered_raise) {
                exchange.vouched = token;
                self.settle(state, k);
            }
        }
    }

    fn settle(&self, state: &mut State<N, K>, k: Attempt) {
        let attempt = state.attempts[usize::from(k)];
        let vouched = state.nodes.map(|server| some(server.with[usize::from(k)].vouched));
        let token = FencingToken::new(attempt.token);
        if attempt.phase == Phase::Raising && (self.variant.protocol.is_confirmed)(&vouched, token)
        {
            state.attempts[usize::from(k)].phase = Phase::Acquired;
        }
    }

    fn write_out(&self, state: &mut State<N, K>, n: usize) {
        state.nodes[n].disk = state.nodes[n].node;
        self.answer_all(state, n);
    }

    fn crash(&self, state: &mut State<N, K>, n: usize, is_empty: bool, read: u8) -> Option<()> {
        fault(&mut state.faults, true)?;
        let back = self.variant.crash?.back;
        let server = &mut state.nodes[n];
        let step = server.node.step;
        let empty = Node { lock: None, fence: None, max: 0, floor: 0, step };
        let kept = if is_empty { empty } else { server.disk };
        if kept == server.node {
            return None;
        }
        (server.node, server.disk) = (kept, kept);
        for exchange in &mut server.with {
            (exchange.unanswered_grant, exchange.unanswered_raise) = (0, false);
            exchange.is_torn = false;
        }
        server.is_away = back != Back::AtOnce;
        if back == Back::ReadsThenWaits {
            self.read_others(state, n, read)?;
        }
        Some(())
    }

    fn come_back(&self, state: &mut State<N, K>, n: usize, read: u8) -> Option<()> {
        let back = self.variant.crash?.back;
        if back != Back::Reads {
            // The only assumption about time: an attempt that had a grant of this node before its
            // crash has acquired by now, or never will.
            for (attempt, exchange) in state.attempts.iter_mut().zip(state.nodes[n].with) {
                let is_open = matches!(attempt.phase, Phase::Asking | Phase::Raising);
                if is_open && exchange.grants().count() > 0 {
                    attempt.phase = Phase::Over;
                }
            }
        }
        if matches!(back, Back::Reads | Back::WaitsThenReads) {
            self.read_others(state, n, read)?;
        }
        let server = &mut state.nodes[n];
        server.is_away = false;
        server.disk = server.node;
        Some(())
    }

    fn read_others(&self, state: &mut State<N, K>, n: usize, read: u8) -> Option<()> {
        let max = |m: usize| (read >> m & 1 == 1).then_some(state.nodes[m].node.max);
        let others: Vec<Option<u64>> = (0..N).filter(|m| *m != n).map(max).collect();
        let floor = (self.variant.protocol.floor)(state.nodes[n].node.max, &others)?;
        (self.variant.protocol.admit)(&mut state.nodes[n].node, floor);
        Some(())
    }
}
