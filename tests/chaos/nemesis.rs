//! Carries out the faults of a round, all targets at the same time, and heals them.

use std::{sync::Mutex, thread, time::Duration};

use crate::{
    client::Slot,
    clock,
    fault::{Action, Done, MASTERS, SIDES, Target},
    masters::Masters,
    plan::Round,
    support::Proxy,
};

/// All that faults are done to.
pub(crate) struct World {
    pub(crate) clients: Vec<Slot>,
    /// By side and master.
    pub(crate) links: Vec<Vec<Proxy>>,
    pub(crate) masters: Masters,
}

impl World {
    /// A proxy to each master for each side.
    pub(crate) fn links(masters: &Masters) -> Vec<Vec<Proxy>> {
        let links = |_| (0..MASTERS).map(|master| Proxy::start(masters.port(master))).collect();
        (0..SIDES).map(links).collect()
    }

    /// Carries out a round, and returns what was done and when.
    pub(crate) fn suffer(&self, round: &Round) -> Vec<Done> {
        let journal = Mutex::new(Vec::new());
        let began = clock::now();
        thread::scope(|scope| {
            for (target, track) in &round.tracks {
                let journal = &journal;
                scope.spawn(move || {
                    for step in track {
                        clock::sleep_until(began + Duration::from_millis(step.at_ms));
                        let from = clock::now();
                        self.apply(*target, step.action);
                        let until = clock::now();
                        let (kind, target, action) = (step.kind, *target, step.action);
                        journal.lock().unwrap().push(Done { kind, target, action, from, until });
                    }
                });
            }
        });
        clock::sleep_until(began + Duration::from_millis(round.lasts_ms));
        let mut journal = journal.into_inner().unwrap();
        journal.sort_by_key(|done| done.from);
        journal
    }

    fn apply(&self, target: Target, action: Action) {
        match target {
            Target::Master(master) | Target::Clock(master) => self.masters.apply(master, action),
            Target::Link { side, master } => switch(&self.links[side][master], action),
            Target::Client(slot) => self.clients[slot].apply(action),
        }
    }

    /// The end of all faults.
    pub(crate) fn heal(&self) {
        for master in 0..MASTERS {
            self.masters.heal(master);
        }
        self.masters.wait_until_all_answer();
        for link in self.links.iter().flatten() {
            switch(link, Action::Heal);
        }
        self.clients.iter().for_each(Slot::heal);
    }
}

fn switch(link: &Proxy, action: Action) {
    match action {
        Action::Cut => link.cut(),
        Action::Reset => link.cut_once(),
        Action::Delay(ms) => link.delay(Duration::from_millis(ms)),
        Action::DropReplies => link.drop_replies(),
        Action::DropRequests => link.drop_requests(),
        Action::Silence => link.hold(),
        Action::HalfOpen => {
            // For a moment requests come in that are not passed on.
            link.hold_requests();
            thread::sleep(Duration::from_millis(20));
            link.orphan();
            link.pass();
        }
        Action::Heal => {
            link.pass();
            link.release_orphans();
        }
        action => panic!("{action:?} is not for a link"),
    }
}
