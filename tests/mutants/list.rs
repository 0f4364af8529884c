//! The mutants. Each breaks one rule by one edit.

/// The library with one rule broken.
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    /// What is true of the library and not of the mutant.
    pub(crate) rule: &'static str,
    pub(crate) file: &'static str,
    /// What is in the file, exactly once.
    pub(crate) text: &'static str,
    pub(crate) instead: &'static str,
    pub(crate) witness: Witness,
}

/// Who has to notice.
#[derive(Clone, Copy)]
pub(crate) enum Witness {
    /// A schedule of the simulation, or else a unit test.
    Simulation,
    /// A test on real servers with this in its name.
    Servers(&'static str),
}

use Witness::{Servers, Simulation};

pub(crate) const MUTANTS: &[Mutant] = &[
    // Counting votes.
    Mutant {
        name: "half_is_a_quorum",
        rule: "a quorum is a strict majority",
        file: "src/majority.rs",
        text: "nodes.saturating_div(2).saturating_add(1)",
        instead: "nodes.saturating_div(2)",
        witness: Simulation,
    },
    Mutant {
        name: "quorum_of_those_that_answered",
        rule: "the quorum is of the configured nodes, whoever is away",
        file: "src/quorum/tally.rs",
        text: "let quorum = quorum(self.nodes);
        if self.yes >= quorum {
            return Some(Vote::Granted);",
        instead: "let quorum = quorum(self.nodes.saturating_sub(self.unknown));
        if self.yes >= quorum {
            return Some(Vote::Granted);",
        witness: Simulation,
    },
    Mutant {
        name: "unknown_is_a_yes",
        rule: "an unknown outcome is no grant",
        file: "src/quorum/tally.rs",
        text: "NodeOutcome::Failed(_) => &mut tally.unknown,",
        instead: "NodeOutcome::Failed(_) => &mut tally.yes,",
        witness: Simulation,
    },
    Mutant {
        name: "unknown_is_a_no",
        rule: "an unknown outcome is no refusal: a lock is not lost because nodes are silent",
        file: "src/quorum/tally.rs",
        text: "NodeOutcome::Failed(_) => &mut tally.unknown,",
        instead: "NodeOutcome::Failed(_) => &mut tally.no,",
        witness: Simulation,
    },
    Mutant {
        name: "missing_is_a_yes",
        rule: "a node without the key has not prolonged it",
        file: "src/quorum/tally.rs",
        text: "NodeOutcome::Answered(Answer::Done | Answer::Counted(_) | Answer::PassedOn) => {
                    &mut tally.yes
                }
                NodeOutcome::Answered(Answer::Missing | Answer::Taken { .. }) => &mut tally.no,",
        instead: "NodeOutcome::Answered(Answer::Taken { .. }) => &mut tally.no,
                NodeOutcome::Answered(_) => &mut tally.yes,",
        witness: Simulation,
    },
    Mutant {
        name: "taken_is_a_yes",
        rule: "a node that has another's key has not granted",
        file: "src/quorum/tally.rs",
        text: "NodeOutcome::Answered(Answer::Done | Answer::Counted(_) | Answer::PassedOn) => {
                    &mut tally.yes
                }
                NodeOutcome::Answered(Answer::Missing | Answer::Taken { .. }) => &mut tally.no,",
        instead: "NodeOutcome::Answered(Answer::Missing) => &mut tally.no,
                NodeOutcome::Answered(_) => &mut tally.yes,",
        witness: Simulation,
    },
    Mutant {
        name: "gone_by_a_minority",
        rule: "a lock is gone only when no majority can have it",
        file: "src/majority.rs",
        text: "nodes.saturating_sub(quorum(nodes)).saturating_add(1)",
        instead: "nodes.saturating_sub(quorum(nodes))",
        witness: Simulation,
    },
    // Validity.
    Mutant {
        name: "drift_added",
        rule: "validity ends before the keys do, by the clocks' drift",
        file: "src/validity.rs",
        text: "started.plus(ttl.saturating_sub(drift.over(ttl)))",
        instead: "started.plus(ttl.saturating_add(drift.over(ttl)))",
        witness: Simulation,
    },
    Mutant {
        name: "drift_ignored",
        rule: "validity allows for nodes whose clocks run faster",
        file: "src/validity.rs",
        text: "started.plus(ttl.saturating_sub(drift.over(ttl)))",
        instead: "started.plus(ttl)",
        witness: Simulation,
    },
    Mutant {
        name: "validity_from_the_decision",
        rule: "validity is counted from before the first node is asked",
        file: "src/quorum/acquire.rs",
        text: "valid_until: valid_until(started, terms.ttl, terms.drift)",
        instead: "valid_until: valid_until(quorum.clock.now(), terms.ttl, terms.drift)",
        witness: Simulation,
    },
    Mutant {
        name: "clock_read_after_the_replies",
        rule: "the clock is read before anything is sent",
        file: "src/quorum/acquire.rs",
        text: "    let mut vote = vote.unwrap_or(Vote::NoQuorum);
",
        instead: "    let mut vote = vote.unwrap_or(Vote::NoQuorum);
    let started = quorum.clock.now();
",
        witness: Simulation,
    },
    Mutant {
        name: "granted_although_used_up",
        rule: "a grant that came too late is no lock",
        file: "src/quorum/acquire.rs",
        text: "if is_valid { Ok(()) } else { Err(Refusal::ValidityUsedUp) }",
        instead: "if is_valid { Ok(()) } else { Ok(()) }",
        witness: Simulation,
    },
    Mutant {
        name: "key_shorter_than_validity",
        rule: "the keys live for the ttl that validity is counted of",
        file: "src/quorum/acquire.rs",
        text: "(Claim::new(quorum, key, fence, terms), millis(terms.ttl));",
        instead: "(Claim::new(quorum, key, fence, terms), millis(terms.ttl).saturating_mul(19) / 20);",
        witness: Simulation,
    },
    Mutant {
        name: "guard_always_valid",
        rule: "a guard's validity ends",
        file: "src/lease.rs",
        text: "            Duration::ZERO\n        } else {\n            state.valid_until.since(state.claim.now())\n",
        instead: "            Duration::ZERO\n        } else {\n            Duration::from_secs(1)\n",
        witness: Simulation,
    },
    // Extending.
    Mutant {
        name: "extended_from_the_decision",
        rule: "an extension is counted from before the first node is asked",
        file: "src/lease.rs",
        text: "Renewed::Until(until.max(valid_until(started, terms.ttl, terms.drift)))",
        instead: "Renewed::Until(until.max(valid_until(now, terms.ttl, terms.drift)))",
        witness: Simulation,
    },
    Mutant {
        name: "extended_after_the_end",
        rule: "an extension that came after the end of validity brings nothing back",
        file: "src/lease.rs",
        text: "        _ if now >= until => Renewed::Lost,
",
        instead: "",
        witness: Simulation,
    },
    Mutant {
        name: "extended_without_a_verdict",
        rule: "an extension takes a majority that had the key",
        file: "src/lease.rs",
        text: "Verdict::Unknown => Renewed::Inconclusive { remaining: until.since(now) },",
        instead: "Verdict::Unknown => Renewed::Until(until.max(valid_until(started, terms.ttl, terms.drift))),",
        witness: Simulation,
    },
    Mutant {
        name: "extension_shrinks_validity",
        rule: "an extension by a short ttl takes nothing away",
        file: "src/lease.rs",
        text: "Renewed::Until(until.max(valid_until(started, terms.ttl, terms.drift)))",
        instead: "Renewed::Until(valid_until(started, terms.ttl, terms.drift))",
        witness: Simulation,
    },
    Mutant {
        name: "lost_and_still_valid",
        rule: "a guard that was told of the loss is not valid any more",
        file: "src/lease.rs",
        text: "                    state.end = Some(End { lost: true, releasing: None });",
        instead: "                    state.at_risk = true;",
        witness: Simulation,
    },
    // Owner ids.
    Mutant {
        name: "owner_id_reused",
        rule: "each attempt has an owner id of its own",
        file: "src/quorum/claim.rs",
        text: "let owner = OwnerId::from_entropy(&quorum.entropy, quorum.seat.get());",
        instead: "let address = Arc::as_ptr(quorum).addr();
        let rng = rand::SeedableRng::seed_from_u64(u64::try_from(address).unwrap_or_default());
        let entropy = crate::entropy::Entropy::Seeded(Arc::new(std::sync::Mutex::new(rng)));
        let owner = OwnerId::from_entropy(&entropy, quorum.seat.get());",
        witness: Simulation,
    },
    // Taking back what a round has set.
    Mutant {
        name: "timeout_means_not_run",
        rule: "what timed out may still run, and is released",
        file: "src/node/mod.rs",
        text: "Self::Timeout { .. } | Self::Disconnected { .. } => true,
            Self::Rejected { .. } => !self.is_forbidden_key(),
            Self::Unreachable { .. }",
        instead: "Self::Disconnected { .. } => true,
            Self::Rejected { .. } => !self.is_forbidden_key(),
            Self::Timeout { .. }
            | Self::Unreachable { .. }",
        witness: Simulation,
    },
    Mutant {
        name: "lost_connection_means_not_run",
        rule: "what was sent on a connection that was lost may have run, and is released",
        file: "src/node/mod.rs",
        text: "Self::Timeout { .. } | Self::Disconnected { .. } => true,
            Self::Rejected { .. } => !self.is_forbidden_key(),
            Self::Unreachable { .. }",
        instead: "Self::Timeout { .. } => true,
            Self::Rejected { .. } => !self.is_forbidden_key(),
            Self::Disconnected { .. }
            | Self::Unreachable { .. }",
        witness: Simulation,
    },
    Mutant {
        name: "pending_not_unwound",
        rule: "a node that has not answered yet is told to release",
        file: "src/quorum/claim.rs",
        text: "NodeOutcome::Pending
        | NodeOutcome::Answered(Answer::Done | Answer::Counted(_) | Answer::PassedOn) => true,
        NodeOutcome::Answered(Answer::Missing | Answer::Taken { .. }) => false,",
        instead: "NodeOutcome::Answered(Answer::Done | Answer::Counted(_) | Answer::PassedOn) => true,
        NodeOutcome::Pending | NodeOutcome::Answered(Answer::Missing | Answer::Taken { .. }) => false,",
        witness: Simulation,
    },
    Mutant {
        name: "granted_not_unwound",
        rule: "a refused attempt is released where it was granted",
        file: "src/quorum/claim.rs",
        text: "NodeOutcome::Pending
        | NodeOutcome::Answered(Answer::Done | Answer::Counted(_) | Answer::PassedOn) => true,
        NodeOutcome::Answered(Answer::Missing | Answer::Taken { .. }) => false,",
        instead: "NodeOutcome::Pending => true,
        NodeOutcome::Answered(_) => false,",
        witness: Simulation,
    },
    Mutant {
        name: "released_only_where_granted",
        rule: "stragglers are told of the release, too",
        file: "src/quorum/claim.rs",
        text: "refilled.contains(&place) || may_hold(outcome);",
        instead: "refilled.contains(&place) || matches!(outcome, &NodeOutcome::Answered(Answer::Done));",
        witness: Simulation,
    },
    Mutant {
        name: "round_given_up_as_never_sent",
        rule: "a round that ran out of time has been sent all the same",
        file: "src/quorum/round.rs",
        text: "self.give_up(&NodeFailure::Timeout { after: limit });",
        instead: "self.give_up(&NodeFailure::Unresponsive);",
        witness: Simulation,
    },
    Mutant {
        name: "dropped_without_release",
        rule: "a claim that is dropped is released",
        file: "src/quorum/claim.rs",
        text: "        if !self.released {
",
        instead: "        if false {
",
        witness: Simulation,
    },
    Mutant {
        name: "release_unheard_is_fine",
        rule: "a release is confirmed by a majority or not at all",
        file: "src/lease.rs",
        text: "            Verdict::Ours if !lost => Ok(()),
            Verdict::Unknown if !lost => {
                Err(ReleaseError::Unconfirmed { nodes: nodes(&mut round) })
            }",
        instead: "            Verdict::Ours | Verdict::Unknown if !lost => Ok(()),",
        witness: Simulation,
    },
    // What is owed to a node.
    Mutant {
        name: "owed_until_first_silence",
        rule: "a release stays owed until the node answered it",
        file: "src/lane/ledger.rs",
        text: "entry.on_the_wire = false;
            if let Some(reply_to) = entry.reply_to.take() {
                reply_to.send(Err(failure));
            }",
        instead: "if let Some(reply_to) = entry.reply_to.take() {
                reply_to.send(Err(failure));
            }
            self.missed = self.missed.saturating_sub(usize::from(entry.missed));
            self.entries.remove(&owner);
            self.count.store(self.entries.len(), Ordering::Relaxed);",
        witness: Simulation,
    },
    Mutant {
        name: "lost_release_on_the_wire_for_ever",
        rule: "a release that was lost with its connection is sent again",
        file: "src/lane/ledger.rs",
        text: "entry.on_the_wire = false;",
        instead: "",
        witness: Simulation,
    },
    Mutant {
        name: "owed_not_sent_to_a_node_that_is_back",
        rule: "a node that is back is sent what it is owed",
        file: "src/lane/ledger.rs",
        text: "self.missed = self.entries.len();
        self.send_again();",
        instead: "self.missed = self.entries.len();",
        witness: Simulation,
    },
    Mutant {
        name: "unknown_script_settles_a_release",
        rule: "a node that has forgotten the scripts has released nothing",
        file: "src/lane/worker/mod.rs",
        text: "self.send(Call::Release { owner, sent_as: SendAs::Text });",
        instead: "self.ledger.settle(owner, outcome);",
        witness: Simulation,
    },
    Mutant {
        name: "shut_down_with_debts",
        rule: "a lane outlives its handles until what it owes is answered, or for 2 s",
        file: "src/lane/worker/mod.rs",
        text: "let idle = answered && self.ledger.len() == 0;",
        instead: "let idle = true;",
        witness: Simulation,
    },
    // Order.
    Mutant {
        name: "late_commands_not_cut_off",
        rule: "a new connection has the old one closed unread",
        file: "src/lane/worker/link.rs",
        text: "Connection::attempt(&self.node, self.stale.clone(), delay, cause)",
        instead: "Connection::attempt(&self.node, Vec::new(), delay, cause)",
        witness: Simulation,
    },
    Mutant {
        name: "old_connection_forgotten_by_a_failed_attempt",
        rule: "the old connection is remembered until a new one was made",
        file: "src/lane/worker/link.rs",
        text: "Connection::attempt(&self.node, self.stale.clone(), delay, cause)",
        instead: "Connection::attempt(&self.node, std::mem::take(&mut self.stale), delay, cause)",
        witness: Simulation,
    },
    Mutant {
        name: "acquire_sent_again_behind_its_release",
        rule: "an acquire that met a flushed script is not sent again behind its release",
        file: "src/lane/worker/votes.rs",
        text: "if !self.is_released(&vote) {",
        instead: "if true {",
        witness: Simulation,
    },
    Mutant {
        name: "renewals_without_a_bound",
        rule: "renewals that are due together wait for each other, and none fails for want of room",
        file: "src/watchdog.rs",
        text: "while self.renewing.len().saturating_sub(self.waiting.len()) < self.most {",
        instead: "while self.rounds.len() < self.most.saturating_mul(10_000) {",
        witness: Simulation,
    },
    Mutant {
        name: "release_overtakes_its_acquire",
        rule: "a release goes out after the acquires of its owner that were asked for before",
        file: "src/lane/calls/mod.rs",
        text: "self.answers.push(answer.map(move |outcome| Came::Alone(id, outcome)).boxed());",
        instead: "let is_vote = operation.is_grant();
                    self.answers.push(Box::pin(async move {
                        if is_vote {
                            tokio::task::yield_now().await;
                        }
                        Came::Alone(id, answer.await)
                    }));",
        witness: Simulation,
    },
    Mutant {
        name: "out_of_step_connection_kept",
        rule: "a connection whose replies are out of step is given up",
        file: "src/lane/worker/mod.rs",
        text: "Err(NodeFailure::Disconnected { cause }) => self.lose_link(&cause.clone()),",
        instead: "",
        witness: Simulation,
    },
    Mutant {
        name: "silence_never_ends",
        rule: "a node that answers again votes again",
        file: "src/lane/worker/link.rs",
        text: "if probe_again.take().is_some() {",
        instead: "if probe_again.is_none() {",
        witness: Simulation,
    },
    // How long a call takes.
    Mutant {
        name: "acquire_waits_too_long",
        rule: "an acquisition ends when its wait is over",
        file: "src/redlock.rs",
        text: "let left = terms.wait.saturating_sub(waited);",
        instead: "let left = terms.wait.saturating_mul(2).saturating_sub(waited);",
        witness: Simulation,
    },
    Mutant {
        name: "release_waits_too_long",
        rule: "a release ends after a node timeout",
        file: "src/lease.rs",
        text: "round.decided(self.terms.node_timeout, Tally::verdict).await;",
        instead: "round.decided(self.terms.node_timeout.saturating_mul(3), Tally::verdict).await;",
        witness: Simulation,
    },
    // Renewing, losing, waiting.
    Mutant {
        name: "old_answers_count_for_a_new_renewal",
        rule: "an answer to an earlier renewal says nothing of a later one",
        file: "src/watchdog.rs",
        text: "        let round = self.last_round.wrapping_add(1);
",
        instead: "        let round = id;
",
        witness: Simulation,
    },
    Mutant {
        name: "not_refilled",
        rule: "a node that lost our key gets it again",
        file: "src/lease.rs",
        text: "if is_valid && *outcome == Ok(Answer::Missing) {",
        instead: "if false && is_valid && *outcome == Ok(Answer::Missing) {",
        witness: Simulation,
    },
    Mutant {
        name: "refilled_after_the_end",
        rule: "nothing is set again after the end",
        file: "src/lease.rs",
        text: "if is_valid && *outcome == Ok(Answer::Missing) {",
        instead: "if *outcome == Ok(Answer::Missing) {",
        witness: Simulation,
    },
    Mutant {
        name: "refill_not_released",
        rule: "a refilled node is told of the release",
        file: "src/quorum/claim.rs",
        text: "refilled.contains(&place) || may_hold(outcome);",
        instead: "may_hold(outcome);",
        witness: Simulation,
    },
    Mutant {
        name: "missing_counts_in_a_renewal",
        rule: "a node where the key is missing does not count in this round",
        file: "src/watchdog.rs",
        text: "            *slot = reply.outcome.into();",
        instead: "            *slot = reply.outcome.map(|_| crate::node::Answer::Done).into();",
        witness: Simulation,
    },
    Mutant {
        name: "loss_is_not_told",
        rule: "the watchdog tells of the end of the validity",
        file: "src/lease.rs",
        text: "        let has_ended = state.end.is_some();
        drop(state);
        if ends_now {",
        instead: "        let has_ended = state.end.is_some();
        drop(state);
        if false && ends_now {",
        witness: Simulation,
    },
    Mutant {
        name: "renewed_late",
        rule: "a lock is renewed before its validity ends",
        file: "src/lease.rs",
        text: "        Some(due.min(end))",
        instead: "        Some(end)",
        witness: Simulation,
    },
    Mutant {
        name: "lost_lock_not_released",
        rule: "a lost lock is released at the end of its validity",
        file: "src/lease.rs",
        text: "            return (!state.claim.is_released()).then_some(end);",
        instead: "            return None;",
        witness: Simulation,
    },
    Mutant {
        name: "released_at_the_loss",
        rule: "a lock that is lost before the end of its validity is not given to the next before it",
        file: "src/lease.rs",
        text: "                    state.end = Some(End { lost: true, releasing: None });",
        instead: "                    state.end_lease(true);",
        witness: Simulation,
    },
    Mutant {
        name: "max_hold_ignored",
        rule: "a lock is not held for longer than max_hold",
        file: "src/lease.rs",
        text: "state.hold_until.map_or(until, |longest| longest.min(until))",
        instead: "until",
        witness: Simulation,
    },
    Mutant {
        name: "who_comes_back_asks",
        rule: "who has passed the lock on waits for his turn without a question",
        file: "src/wait/mod.rs",
        text: "if is_passed_on { RETURNING_AFTER } else { NEWCOMER_AFTER }",
        instead: "{ let _ = (is_passed_on, RETURNING_AFTER); NEWCOMER_AFTER }",
        witness: Simulation,
    },
    Mutant {
        name: "called_by_too_few",
        rule: "where the nodes disagree about who is next, whoever was called looks round",
        file: "src/wait/mod.rs",
        text: "turn = Some(sooner(turn, newcomer));",
        instead: "let _ = (sooner(turn, newcomer), node);",
        witness: Simulation,
    },
    Mutant {
        name: "own_release_is_contention",
        rule: "who is called by his own release does not take it that others wait",
        file: "src/wait/mod.rs",
        text: "if !(is_alone && owner.seat() == quorum.seat.get()) {",
        instead: "{",
        witness: Simulation,
    },
    Mutant {
        name: "greedy_one_does_not_learn",
        rule: "who is never refused learns from his releases that others wait",
        file: "src/lane/worker/mod.rs",
        text: "                    self.common.contended.note(&release.key);
",
        instead: "",
        witness: Simulation,
    },
    Mutant {
        name: "far_node_is_suspected",
        rule: "a node may be silent for as long as its users mostly wait for it",
        file: "src/lane/mod.rs",
        text: "let silence = node_timeout.clamp(SILENT_AT_LEAST, SILENT_AT_MOST);",
        instead: "let silence = { let _ = (node_timeout, SILENT_AT_MOST); SILENT_AT_LEAST };",
        witness: Simulation,
    },
    Mutant {
        name: "nobody_leaves_his_seat",
        rule: "of two that share a seat one takes another",
        file: "src/own_seat.rs",
        text: "since.elapsed() < STAYS_FOR)",
        instead: "since.elapsed() < STAYS_FOR) || sitting.since.is_none()",
        witness: Simulation,
    },
    Mutant {
        name: "unknown_is_shared",
        rule: "who does not hear how many sit on his seat stays there",
        file: "src/wait/mod.rs",
        text: "self.shares_seat = sharing > 1;",
        instead: "self.shares_seat = sharing != 1;",
        witness: Servers("waiting"),
    },
    Mutant {
        name: "move_is_not_told",
        rule: "who takes another seat is called there",
        file: "src/wait/ear.rs",
        text: "self.to_move.extend(self.subscribed.keys().cloned())",
        instead: "{}",
        witness: Simulation,
    },
    Mutant {
        name: "few_announcements_at_a_time",
        rule: "a listener hears of all that are released together",
        file: "src/node/redis/mod.rs",
        text: "const ANNOUNCEMENTS: usize = 128;",
        instead: "const ANNOUNCEMENTS: usize = 32;",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "one_key_at_a_time",
        rule: "who waits for many locks is asked to hear of all at once",
        file: "src/wait/ear.rs",
        text: "const AT_ONCE: usize = 64;",
        instead: "const AT_ONCE: usize = 1;",
        witness: Simulation,
    },
    Mutant {
        name: "call_in_vain_is_not_forgotten",
        rule: "who was called in vain does not take it that the lock goes round",
        file: "src/wait/ear.rs",
        text: "            self.hub.successors.forget(key);
",
        instead: "",
        witness: Simulation,
    },
    Mutant {
        name: "passed_on_long_ago",
        rule: "only who comes back at once waits for the lock to come round",
        file: "src/successors.rs",
        text: "Self::WasCalled { at } => at.elapsed() < AT_ONCE",
        instead: "Self::WasCalled { at } => at.elapsed() < AT_ONCE.saturating_mul(100)",
        witness: Simulation,
    },
    Mutant {
        name: "turn_not_passed_on",
        rule: "a waiter whose queue is empty leaves nothing behind for the next",
        file: "src/wait/mod.rs",
        text: "        Some(Arc::clone(self.queue.as_ref()?).lock_owned().await)",
        instead: "        std::mem::forget(Arc::clone(self.queue.as_ref()?).lock_owned().await);
        None",
        witness: Simulation,
    },
    // Admission.
    Mutant {
        name: "forgetful_nodes_do_not_wait",
        rule: "a node that may have forgotten waits for the longest ttl",
        file: "src/admission/mod.rs",
        text: "if now < until {",
        instead: "if false {",
        witness: Simulation,
    },
    Mutant {
        name: "shorter_wait",
        rule: "the wait is the longest ttl and the drift over it",
        file: "src/admission/mod.rs",
        text: "max_ttl.saturating_add(self.drift.over(max_ttl))",
        instead: "max_ttl.div_f64(3.0)",
        witness: Simulation,
    },
    Mutant {
        name: "wait_counts_from_before_the_flush",
        rule: "the wait begins with a marker that is there until its end",
        file: "src/board.rs",
        text: "        let same = before
            .filter(|seen| seen.facts.run_id == facts.run_id && seen.facts.marker == facts.marker);
        let since = same.as_ref().map_or(now, |seen| seen.since);
",
        instead: "        let first = before.as_ref().filter(|seen| seen.facts.run_id == facts.run_id);
        let since = first.map_or(now, |seen| seen.since);
        let same = before
            .filter(|seen| seen.facts.run_id == facts.run_id && seen.facts.marker == facts.marker);
",
        witness: Simulation,
    },
    Mutant {
        name: "another_process_is_the_same_node",
        rule: "a node is admitted for one process",
        file: "src/admission/mod.rs",
        text: "let is_of_process = marker.run_id == facts.run_id;",
        instead: "let is_of_process = true;",
        witness: Simulation,
    },
    Mutant {
        name: "no_marker_check",
        rule: "a vote looks for the marker",
        file: "src/sim/master.rs",
        text: "if marker.is_some_and(|marker| marker.starts_with(&ballot.mark)) {",
        instead: "if marker.is_some() || ballot.mark.is_empty() || now >= Duration::ZERO {",
        witness: Simulation,
    },
    Mutant {
        name: "member_list_not_compared",
        rule: "clients with another list of nodes do not vote",
        file: "src/admission/mod.rs",
        text: "if marker.members != self.members {",
        instead: "if false {",
        witness: Simulation,
    },
    Mutant {
        name: "read_before_the_wait",
        rule: "what others granted is read after the wait",
        file: "src/admission/mod.rs",
        text: "let is_fresh = |seen: &Seen| seen.asked_at >= until;",
        instead: "let is_fresh = |seen: &Seen| seen.asked_at >= until || true;",
        witness: Simulation,
    },
    Mutant {
        name: "every_fleet_is_new",
        rule: "a fleet of which a node was admitted before is not new",
        file: "src/admission/mod.rs",
        text: "self.is_new && !sight.is_old && can_be_there",
        instead: "self.is_new && can_be_there",
        witness: Simulation,
    },
    // Fencing tokens.
    Mutant {
        name: "no_raise",
        rule: "a quorum vouches for one number",
        file: "src/quorum/confirm.rs",
        text: "    if fence::is_confirmed(&granted, token) {
        return Some((token, false));",
        instead: "    if fence::is_confirmed(&granted, token) || true {
        return Some((token, false));",
        witness: Simulation,
    },
    Mutant {
        name: "raise_for_whoever_asks",
        rule: "a counter is raised for the owner of the lock",
        file: "src/fence/counters.rs",
        text: "if !is_ours || self.counter() > token.get() {",
        instead: "if self.counter() > token.get() || (!is_ours && self.lock.is_none() && false) {",
        witness: Simulation,
    },
    Mutant {
        name: "token_is_not_the_largest",
        rule: "the token is the largest number of the grants",
        file: "src/fence/mod.rs",
        text: "at_hand.max().copied()",
        instead: "at_hand.min().copied()",
        witness: Simulation,
    },
    Mutant {
        name: "missing_counter_is_0",
        rule: "a counter that is missing may have been anything up to the largest",
        file: "src/fence/counters.rs",
        text: "self.fence.unwrap_or(self.max)",
        instead: "self.fence.unwrap_or(0)",
        witness: Simulation,
    },
    Mutant {
        name: "refill_without_the_token",
        rule: "a refill brings the token along",
        file: "src/quorum/claim.rs",
        text: "let operation = match (self.fence.clone(), self.token) {",
        instead: "let operation = match (self.fence.clone(), self.token.filter(|_| false)) {",
        witness: Servers("a_refill_brings_the_token_along"),
    },
    Mutant {
        name: "floor_without_the_max",
        rule: "what a node learnt at its admission it passes on",
        file: "src/sim/master.rs",
        text: "ahead(max.max(marker.floor), self.step)",
        instead: "ahead(max, self.step)",
        witness: Simulation,
    },
    Mutant {
        name: "floor_falls",
        rule: "a floor stays for as long as its marker",
        file: "src/admission/mod.rs",
        text: "floor.max(before).unwrap_or(0)",
        instead: "floor.unwrap_or(0)",
        witness: Simulation,
    },
    Mutant {
        name: "marker_is_read_first",
        rule: "a marker that is there shows that the largest number was not forgotten",
        file: "src/node/redis/look.rs",
        text: "        let max = self.get(&keys.max).await?;
        facts.max = max.map_or(Some(0), |max| fencing_token::number(&max));
        facts.marker = self.get(&keys.marker).await?;",
        instead: "        facts.marker = self.get(&keys.marker).await?;
        let max = self.get(&keys.max).await?;
        facts.max = max.map_or(Some(0), |max| fencing_token::number(&max));",
        witness: Servers("a_look_reads_the_marker"),
    },
    Mutant {
        name: "floor_is_not_read",
        rule: "a node that was admitted in the middle of a look counts with what it learned",
        file: "src/admission/sight.rs",
        text: "self.facts.max.map(|max| max.max(floor))",
        instead: "self.facts.max.map(|max| max.max(floor * 0))",
        witness: Simulation,
    },
    Mutant {
        name: "script_without_the_floor",
        rule: "a node grants only above its floor",
        file: "src/node/lua/begin_step.lua",
        text: "counter = math.max(counter, @floor@)",
        instead: "counter = math.max(counter, @floor@ * 0)",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "script_goes_on_below_the_floor",
        rule: "a counter below the floor is passed over",
        file: "src/node/lua/acquire_fenced.lua",
        text: "last >= @floor@",
        instead: "last + 1 >= @floor@",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "script_goes_on_beyond_its_step",
        rule: "the first number of a step looks at the largest",
        file: "src/node/lua/acquire_fenced.lua",
        text: "last % 64 ~= 0 and",
        instead: "",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "script_goes_on_beyond_the_limit",
        rule: "a number that is not exact is not granted",
        file: "src/node/lua/acquire_fenced.lua",
        text: "last < 9007199254740991 then",
        instead: "true then",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "script_takes_a_missing_counter_for_one_that_is_there",
        rule: "a counter that is missing may have been anything up to the largest",
        file: "src/node/lua/acquire_fenced.lua",
        text: "local last = tonumber(text)",
        instead: "local last = tonumber(text or '1')",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "the_number_before_is_the_number",
        rule: "no number is granted twice",
        file: "src/node/script.rs",
        text: "u64::from(self.code == 6)",
        instead: "0",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "admission_does_not_write_ahead",
        rule: "a node that is admitted has its largest number ahead of its counters",
        file: "src/node/lua/mark.lua",
        text: "math.ceil(math.max(max, tonumber(ARGV[4])) / 64) * 64",
        instead: "math.max(max, tonumber(ARGV[4]))",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "script_leaves_a_lock_without_a_number",
        rule: "an acquisition that cannot count leaves no lock",
        file: "src/node/lua/acquire_fenced.lua",
        text: "redis.call('DEL', KEYS[1])",
        instead: "",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "script_max_is_not_ahead",
        rule: "the largest number is written ahead of the grants that do not look at it",
        file: "src/node/lua/counting.lua",
        text: "math.ceil(number / 64) * 64",
        instead: "number",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "script_max_is_ahead_of_the_number_only",
        rule: "the largest number is at least the end of the step, also where it stands within one",
        file: "src/node/lua/counting.lua",
        text: "if ahead > max then",
        instead: "if number > max then",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "max_is_not_ahead",
        rule: "the largest number is written ahead of the grants that do not look at it",
        file: "src/fence/counters.rs",
        text: "self.max = self.max.max(ahead(number, self.step));",
        instead: "self.max = self.max.max(number);",
        witness: Simulation,
    },
    Mutant {
        name: "goes_on_below_the_floor",
        rule: "a counter below the floor is passed over",
        file: "src/fence/counters.rs",
        text: "(self.floor..LIMIT)",
        instead: "(self.floor.saturating_sub(1)..LIMIT)",
        witness: Simulation,
    },
    Mutant {
        name: "set_and_count_apart",
        rule: "a node counts in the step that grants",
        file: "src/sim/counting.rs",
        text: "                if goes_on {",
        instead: "                if number.get() % 2 == 0 {
                } else if goes_on {",
        witness: Simulation,
    },
    // The scripts, as the simulated master has them.
    Mutant {
        name: "simulated_acquire_overwrites",
        rule: "a key that exists is not set",
        file: "src/sim/master.rs",
        text: "if self.get(key.as_str(), now).is_some() {",
        instead: "if false {",
        witness: Simulation,
    },
    Mutant {
        name: "simulated_acquire_without_ttl",
        rule: "a dead client's key ends with its ttl",
        file: "src/sim/master.rs",
        text: "Some(&owner.to_string()), Some(*ttl_ms), now)",
        instead: "Some(&owner.to_string()), None, now)",
        witness: Simulation,
    },
    Mutant {
        name: "simulated_release_of_anothers_key",
        rule: "only the owner's key is deleted",
        file: "src/sim/master.rs",
        text: "Operation::Release { key, owner, .. } => {
                let answer = self.whose(key.as_str(), &owner.to_string(), now)?;",
        instead: "Operation::Release { key, .. } => {
                let answer = Answer::Done;",
        witness: Simulation,
    },
    Mutant {
        name: "simulated_extend_of_anothers_key",
        rule: "only the owner's key is prolonged",
        file: "src/sim/master.rs",
        text: "Operation::Extend { key, owner, ttl_ms } => {
                let answer = self.whose(key.as_str(), &owner.to_string(), now)?;",
        instead: "Operation::Extend { key, ttl_ms, .. } => {
                let answer = Answer::Done;",
        witness: Simulation,
    },
    Mutant {
        name: "simulated_extend_shortens",
        rule: "an extension never shortens a key's life",
        file: "src/sim/master.rs",
        text: "entry.expires_ms.is_some_and(|at| at < until)",
        instead: "entry.expires_ms.is_some()",
        witness: Simulation,
    },
    Mutant {
        name: "simulated_reply_out_of_step_counts",
        rule: "a reply to another question is no vote",
        file: "src/sim/wire.rs",
        text: "(Self::Call(asked), Answer::Call(outcome)) if is_in_step =>",
        instead: "(Self::Call(asked), Answer::Call(outcome)) if true =>",
        witness: Simulation,
    },
    // The scripts and replies of real servers.
    Mutant {
        name: "together_without_admission",
        rule: "votes that go together need the admission as any",
        file: "src/node/lua/together.lua",
        text: "local is_admitted = is_readable and sub(marker or '', 1, 32) == '@mark@'",
        instead: "local is_admitted = is_readable and (true or '@mark@')",
        witness: Servers("together"),
    },
    Mutant {
        name: "together_in_another_order",
        rule: "what goes together is done in the order in which it was asked for",
        file: "src/lane/outbox.rs",
        text: "self.0.push_back(queued);",
        instead: "self.0.push_front(queued);",
        witness: Simulation,
    },
    Mutant {
        name: "one_of_many_stops_the_rest",
        rule: "an operation that fails does not keep those from being done that go with it",
        file: "src/node/lua/together.lua",
        text: "is_done, reply = pcall(operation, name, keys, args)",
        instead: "is_done, reply = true, operation(name, keys, args)",
        witness: Servers("together"),
    },
    Mutant {
        name: "refused_together_is_refused_for_good",
        rule: "a key that may not be touched costs others nothing",
        file: "src/lane/calls/mod.rs",
        text: "let is_for_a_key = failure.is_forbidden_key();",
        instead: "let is_for_a_key = false;",
        witness: Servers("together"),
    },
    Mutant {
        name: "refused_together_is_asked_together_again",
        rule: "what was refused for the company it was in is asked again alone",
        file: "src/lane/calls/mod.rs",
        text: "let most = if self.each_alone { 1 } else { link.most_together() };",
        instead: "let most = link.most_together();",
        witness: Simulation,
    },
    Mutant {
        name: "asked_again_behind_its_release",
        rule: "what was refused together is not sent again behind its release",
        file: "src/lane/worker/mod.rs",
        text: "Call::Vote(vote) if self.is_released(&vote) =>",
        instead: "Call::Vote(vote) if false =>",
        witness: Servers("together"),
    },
    Mutant {
        name: "release_answered_first_disowns_nobody",
        rule: "a vote is not sent again behind its release, also when that is answered first",
        file: "src/lane/calls/mod.rs",
        text: "vote.disowned |= vote.operation.owner() == Some(*owner);",
        instead: "vote.disowned |= false;",
        witness: Simulation,
    },
    Mutant {
        name: "lines_out_of_step_count",
        rule: "a joint reply with a line to somebody else is no vote for anybody",
        file: "src/node/redis/reply.rs",
        text: "lines.next().is_none() && !outcomes.contains(&Err(out_of_step()))",
        instead: "lines.next().is_none() || !outcomes.is_empty()",
        witness: Simulation,
    },
    Mutant {
        name: "joint_reply_to_another_command_counts",
        rule: "a joint reply to another command is no vote for anybody",
        file: "src/node/redis/reply.rs",
        text: "let is_ours = lines.next() == Some(&*number.to_string());",
        instead: "let is_ours = lines.next().is_some() || number == 0;",
        witness: Simulation,
    },
    Mutant {
        name: "what_is_released_together_calls_nobody",
        rule: "who waits is called also by a release that goes with others",
        file: "src/node/lua/together.lua",
        text: "args[2] = sit[ring] == 0 and '0' or args[2]",
        instead: "args[2] = sit[ring] and '0' or args[2]",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "it_is_asked_who_waits_for_another_lock",
        rule: "of several that are released each calls those who wait for it",
        file: "src/node/lua/together.lua",
        text: "local counter, ring = #kinds + 2, 0",
        instead: "local counter, ring = #kinds + 2, 2",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "forbidden_key_keeps_a_node_from_voting",
        rule: "a lock that the client may not touch is no reason to refuse others",
        file: "src/node/mod.rs",
        text: "self.is_rejection(\"WRONGTYPE\") || self.is_forbidden_key()",
        instead: "self.is_rejection(\"WRONGTYPE\")",
        witness: Servers("together"),
    },
    Mutant {
        name: "one_waits_for_another_that_has_more_time",
        rule: "a vote that goes with others ends in its own time",
        file: "src/lane/calls/mod.rs",
        text: "self.ends.insert((*until, *id));",
        instead: "drop((*until, *id));",
        witness: Simulation,
    },
    Mutant {
        name: "acquire_overwrites",
        rule: "a key that exists is not set",
        file: "src/node/lua/take.lua",
        text: "'SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])",
        instead: "'SET', KEYS[1], ARGV[1], 'PX', ARGV[2])",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "acquire_without_ttl",
        rule: "a dead client's key ends with its ttl",
        file: "src/node/lua/take.lua",
        text: "'SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])",
        instead: "'SET', KEYS[1], ARGV[1], 'NX')",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "release_of_anothers_key",
        rule: "only the owner's key is deleted",
        file: "src/node/lua/release.lua",
        text: "if holder ~= ARGV[1] then",
        instead: "if false then",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "own_ears_are_others",
        rule: "a release that calls nobody but the process itself does not say that others wait",
        file: "src/node/lua/release.lua",
        text: "others = (sharing[1] or 0) > 1 and 1 or 0",
        instead: "others = #called",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "release_calls_nobody_but_whom_it_knows",
        rule: "a release that finds nobody on the seat that it was told calls the next",
        file: "src/node/lua/release.lua",
        text: "  calls = 1
",
        instead: "  calls = 0
",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "extend_of_anothers_key",
        rule: "only the owner's key is prolonged",
        file: "src/node/lua/extend.lua",
        text: "if holder ~= ARGV[1] then",
        instead: "if false then",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "extend_shortens",
        rule: "an extension never shortens a key's life",
        file: "src/node/lua/extend.lua",
        text: "redis.call('PEXPIRE', KEYS[1], ARGV[2], 'GT')",
        instead: "redis.call('PEXPIRE', KEYS[1], ARGV[2])",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "stale_links_not_killed",
        rule: "a new connection has the old one closed unread",
        file: "src/node/redis/mod.rs",
        text: "stale.iter().filter(|old| old.run_id == run_id)",
        instead: "stale.iter().filter(|old| old.run_id != run_id)",
        witness: Servers("conformance"),
    },
    Mutant {
        name: "reply_out_of_step_counts",
        rule: "a reply to another question is no vote",
        file: "src/node/redis/reply.rs",
        text: "reply.and_then(Said::read).filter(|said| is_for(said.to, asked));",
        instead: "reply.and_then(Said::read);",
        witness: Servers("replies"),
    },
];
