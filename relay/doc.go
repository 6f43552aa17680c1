// Package relay publishes what producers append to the outbox: in causal order per key, with several relays at work,
// and without making producers wait for each other or for a relay.
//
// What the user does:
//
//  1. Migrate the outbox set (package migrations, or `relay migrate`).
//  2. Make a [Publisher] (package publisher, for Kafka) and a [Relay] with [New], and call [Relay.Run] until shutdown.
//     Run as many relays as you like, in the application or as the relay binary: they share the lanes.
//  3. Connect to the primary. A replica shows transactions in another order, and cannot be written.
//  4. Watch [Relay.Stalled], [Relay.Sample] and the parked events: an event that the broker certainly refuses waits,
//     with the later events of its key, until an operator releases, edits or discards it. Events that cannot be sent
//     now (their partition does not answer, their topic is refused or paused) are held and published later, in order,
//     without an operator; the others continue.
//  5. Deduplicate on the other side (package inbox): after a fault an event may be published again, under the same id
//     and the same sequence number.
//
// How it works. Thirty-two lanes are a hash of the key; a lane is sent by one relay at a time, which holds its lease by
// the database's clock, and whose fence every write compares. A pump repeats, for some of the relay's lanes: claim
// (lock the lanes, take the next events by id, write a journal entry that fixes their sequence numbers, and commit it
// to disk), publish (with no transaction open), settle (delete the entry and its events). A claim's events are sent
// under the same numbers until they are settled, by whichever relay.
//
// Order comes from "what is still in the table, by id, one owner per lane". An event whose cause was visible to its
// transaction has a higher id, and every snapshot that shows it shows its cause. There is no cursor that a late commit
// could slip behind, and no waiting for the oldest transaction of the cluster.
//
// Probes and claims begin at a floor, an id below which a lane has no row left: so they skip dead rows that are not
// vacuumed yet. Events with event.Event.NotBefore wait beside the outbox until the owner of their lane moves them into
// it.
package relay
