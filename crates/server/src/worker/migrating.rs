//! Keys that come back from the migrator: see [`crate::migration`].

use super::Worker;
use super::blocking::Served;
use super::engine::Engine;
use crate::clock::Ticks;
use crate::migration::{Departure, parcel};
use crate::persistence::gate;
use kvick_resp::{OwnedArgs, Reply};
use kvick_store::{Db, Env, Key, Watcher};
use std::sync::Arc;

/// What became of keys that came back.
enum Settled {
    /// The client is to be answered.
    Done(Served),
    /// Some are under way once more.
    Sent,
    /// The data are being loaded.
    Later(Departure),
}

impl Worker {
    /// Deals with the keys that came back, unless writes have to wait.
    pub(super) fn settle_returned(&mut self) {
        if self.returned.is_empty() || self.server.pause.keeps_data(self.engine.now_ms) {
            return;
        }
        for departure in std::mem::take(&mut self.returned) {
            match self.engine.within_batch(|engine| engine.settle(departure)) {
                Settled::Done(served) => self.deliver(served),
                Settled::Sent => {}
                Settled::Later(departure) => self.returned.push(departure),
            }
        }
    }
}

impl Engine {
    /// Deletes the keys that have arrived, and answers the client or sends those that changed once more.
    fn settle(&mut self, mut departure: Departure) -> Settled {
        let (keyspace, db) = (self.server.keyspace, departure.db);
        let names: Vec<Box<[u8]>> = departure.parcels.iter().map(|parcel| parcel.key.clone()).collect();
        let keys: Vec<Key<'_>> = names.iter().map(|name| keyspace.key(name)).collect();
        let addresses = |_: &Engine| keys.iter().map(|key| keyspace.address(db, *key)).collect();
        let mut locked = self.lock_patiently(addresses);
        if self.server.persistence.gate.has(gate::LOADING) {
            // Keys that are not there yet are not gone.
            return Settled::Later(departure);
        }
        let when_expired = self.when_expired(&departure.client.info);
        let heard = self.heard();
        self.effects.begin(keyspace.log.followed(), heard, db);
        let env = Env {
            now_ms: self.now_ms,
            access: &self.access,
            touch: false,
            lazy_expire: self.tunables.commands.lazy_expire,
            lazy_overwrite: self.tunables.commands.lazy_server_del,
            when_expired,
            counters: &self.stats.keyspace,
            effects: &mut self.effects,
        };
        let lazy = self.tunables.commands.lazy_server_del;
        let under_way = &self.server.migration.under_way;
        parcel::settle(&mut departure, under_way, &mut Db::new(&mut locked, db, env), lazy);
        keys.iter().for_each(|key| locked.unwatch(db, *key, &departure.watcher));
        departure.watcher = Arc::new(Watcher::default());
        for parcel in &departure.parcels {
            locked.watch(db, keyspace.key(&parcel.key), &departure.watcher, self.now_ms);
        }
        // What is propagated was said above.
        self.effects.commit(&keyspace.log, OwnedArgs::new::<&[u8]>([]).args());
        drop(locked);
        if self.effects.concern_others() {
            self.settle_consequences();
        }
        if departure.parcels.is_empty() {
            return Settled::Done(self.answer_departure(&departure));
        }
        self.server.migration.send(Box::new(departure));
        Settled::Sent
    }

    fn answer_departure(&mut self, departure: &Departure) -> Served {
        let client = &departure.client;
        let mut reply = Vec::new();
        let result = parcel::reply(departure, &mut Reply::new(&mut reply, client.version));
        if let Err(error) = &result {
            Reply::new(&mut reply, client.version).error(error.0.as_bytes());
        }
        if let Some(command) = self.server.table.get(client.command) {
            self.count(command, Ticks::now(), &result);
        }
        Served { client: client.info.clone(), ticket: client.ticket, reply, is_last: false }
    }
}
