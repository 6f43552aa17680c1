// Package relay publishes what producers append to the outbox: in causal order per key, with several relays at work,
// and without making producers wait for each other or for a relay.
//
// What the user does:
//
//  1. Migrate the outbox set (package migrations, or `relay migrate`).
//  2. Make a [Publisher] (package publisher, for Kafka) and a [Relay] with [New], and call [Relay.Run] until shutdown.
//     Run as many relays as you like, in the application or as the relay binary: they share the lanes.
//  3. Connect to the primary. A replica shows transactions in another order, and cannot be written.
//  4. Watch [Relay.Stalled] and [Relay.Sample], and what is parked: an event that the broker refuses for certain waits,
//     with the later events of its key, until an operator releases, mends or discards it. What cannot be sent now (a
//     partition that does not answer, a topic that is refused or paused) is held and goes out by itself, in order; the
//     rest goes on.
//  5. Deduplicate on the other side (package inbox): after a fault an event may be published again, under the same id
//     and the same sequence number.
//
// How it works. Thirty-two lanes are a hash of the key; a lane is sent by one relay at a time, which holds its lease by
// the database's clock, and whose fence every write compares. A pump repeats, for some of the relay's lanes: claim
// (lock the lanes, take the next events by id, write a journal entry that fixes their sequence numbers, and commit it
// to disk), publish (with no transaction open), settle (delete the entry and its events). What a claim names is sent
// under the same numbers until it is settled, whoever settles it.
//
// Order comes from "what is still in the table, by id, one owner per lane". An event whose cause was visible to its
// transaction has a higher id, and every snapshot that shows it shows its cause. There is no cursor that a late commit
// could slip behind, and no waiting for the oldest transaction of the cluster.
//
// Looks for events begin at a floor, an id below which a lane has nothing left: rows that are dead and not vacuumed yet
// cost nothing. Events with event.Event.NotBefore wait beside the outbox until the owner of their lane moves them into
// it.
package relay
