package wal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/effectonce/effectonce/relay/internal/cycle"
	"github.com/effectonce/effectonce/relay/internal/pg"
)

const (
	// statusEvery is the pause between two status messages, which have the confirmed position and keep the connection
	// alive.
	statusEvery = time.Second
	// silence is how long the server may not answer a request before the connection counts as lost.
	silence = 30 * time.Second
)

// reader reads a slot over a replication connection: one goroutine reads and writes the status messages, because a
// connection knows one deadline for both.
type reader struct {
	More  chan struct{} // a signal: there is something for Next
	Urged chan struct{} // a signal: the server asks for the confirmed position, as it does before it shuts down

	conn    *pgconn.PgConn
	feed    *Feed
	decoder *decoder

	confirmed atomic.Uint64 // the position that the server may be told
	told      uint64
	received  uint64

	mu    sync.Mutex
	batch *batch        // events that Next has not taken yet
	taken chan struct{} // a signal: Next has taken the batch
}

// openReader connects as the relay's pool would, and starts streaming at the slot's confirmed position.
func openReader(ctx context.Context, feed *Feed, st *state) (*reader, error) {
	slot, from := st.Name, uint64(st.Confirmed)
	ctx, cancel := context.WithTimeout(ctx, feed.Lease)
	defer cancel()
	conn, err := pg.DialReplication(ctx, feed.DB, "effectonce relay wal")
	if err != nil {
		return nil, explain(err)
	}
	if !st.failover {
		if err := keepInFailover(ctx, conn, slot); err != nil {
			feed.Log.Warn("the replication slot will not survive a failover", "slot", slot, "error", err)
		}
	}
	err = pglogrepl.StartReplication(ctx, conn, slot, pglogrepl.LSN(from), pglogrepl.StartReplicationOptions{
		PluginArgs: []string{
			"proto_version '1'", "publication_names '" + slot + "'", "binary 'true'", "messages 'true'",
		},
	})
	if err != nil {
		pg.HangUp(conn)
		return nil, explain(fmt.Errorf("relay: reading the replication slot %s: %w", slot, err))
	}
	r := &reader{
		conn: conn, feed: feed, decoder: newDecoder(cycle.EventOverhead), told: from, received: from, batch: &batch{},
		More: make(chan struct{}, 1), Urged: make(chan struct{}, 1), taken: make(chan struct{}, 1),
	}
	r.confirmed.Store(from)
	return r, nil
}

// keepInFailover lets standbys synchronize the slot. No SQL function can change that for an existing slot.
func keepInFailover(ctx context.Context, conn *pgconn.PgConn, slot string) error {
	return conn.Exec(ctx, "ALTER_REPLICATION_SLOT "+slot+" (FAILOVER)").Close()
}

// Confirm allows the server to be told that everything before a position was published. Nothing else moves the slot.
func (r *reader) Confirm(pos uint64) { r.confirmed.Store(pos) }

// Confirmed returns the position of the last Confirm, or the start of reading.
func (r *reader) Confirmed() uint64 { return r.confirmed.Load() }

// status tells the server the confirmed position.
func (r *reader) status(ctx context.Context, ask bool) error {
	confirmed := r.confirmed.Load()
	if err := r.conn.Conn().SetWriteDeadline(time.Now().Add(r.feed.Lease)); err != nil {
		return fmt.Errorf("relay: replication connection: %w", err)
	}
	// If it is 0, pglogrepl would confirm the received position.
	err := pglogrepl.SendStandbyStatusUpdate(ctx, r.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: pglogrepl.LSN(max(r.received, confirmed)), WALFlushPosition: pglogrepl.LSN(confirmed),
		WALApplyPosition: pglogrepl.LSN(confirmed), ReplyRequested: ask,
	})
	if err != nil {
		return fmt.Errorf("relay: telling the server what is confirmed: %w", err)
	}
	r.told = confirmed
	return nil
}

// Run fills batches until ctx ends or the connection does.
func (r *reader) Run(ctx context.Context) error {
	nc := r.conn.Conn()
	defer context.AfterFunc(ctx, func() { _ = nc.SetReadDeadline(time.Unix(1, 0)) })()
	heard, due := time.Now(), time.Now()
	for n := 0; ctx.Err() == nil; n++ {
		if n%64 == 0 || r.conn.Frontend().ReadBufferLen() == 0 {
			now := time.Now()
			if now.After(due) || r.confirmed.Load() != r.told {
				if err := r.status(ctx, now.Sub(heard) > silence/3); err != nil {
					return err
				}
				due = now.Add(statusEvery)
			}
			_ = nc.SetReadDeadline(due)
			if ctx.Err() != nil {
				return nil
			}
		}
		msg, err := r.conn.Frontend().Receive()
		var timeout net.Error
		switch {
		case errors.As(err, &timeout) && timeout.Timeout():
			if time.Since(heard) > silence {
				return fmt.Errorf("relay: the replication connection has been silent for %v", silence)
			}
			n = -1
			continue
		case err != nil:
			return fmt.Errorf("relay: replication connection: %w", err)
		}
		heard = time.Now()
		if err := r.take(ctx, msg); err != nil {
			return err
		}
	}
	return nil
}

// take handles one message of the server, and waits while the batch is full.
func (r *reader) take(ctx context.Context, msg pgproto3.BackendMessage) error {
	var data []byte
	switch m := msg.(type) {
	case *pgproto3.CopyData:
		data = m.Data
	case *pgproto3.ErrorResponse:
		return fmt.Errorf("%w: %w", errServer, pgconn.ErrorResponseToPgError(m))
	case *pgproto3.CopyDone, *pgproto3.CommandComplete, *pgproto3.ReadyForQuery:
		return errors.New("relay: the server has ended the replication")
	default:
		return nil // notices and parameters
	}
	if len(data) == 0 {
		return errUnread
	}
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		return r.keepalive(ctx, data[1:])
	case pglogrepl.XLogDataByteID:
		if len(data) < 25 {
			return errUnread
		}
		return r.decode(ctx, data)
	}
	return nil
}

// keepalive: the server has no events up to a position. Outside of a transaction the batch's position advances to it;
// it is confirmed when all events before it are.
func (r *reader) keepalive(ctx context.Context, b []byte) error {
	ka, err := pglogrepl.ParsePrimaryKeepaliveMessage(b)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnread, err)
	}
	r.received = max(r.received, uint64(ka.ServerWALEnd))
	if !r.decoder.inside {
		r.mu.Lock()
		r.batch.Pos = max(r.batch.Pos, uint64(ka.ServerWALEnd))
		r.mu.Unlock()
		r.announce()
	}
	if !ka.ReplyRequested {
		return nil
	}
	select {
	case r.Urged <- struct{}{}:
	default:
	}
	return r.status(ctx, false)
}

func (r *reader) decode(ctx context.Context, data []byte) error {
	r.received = max(r.received, binary.BigEndian.Uint64(data[1:]))
	r.mu.Lock()
	err := r.decoder.decode(data[25:], r.batch)
	full := r.full()
	r.mu.Unlock()
	if err != nil {
		return err
	}
	if full || r.conn.Frontend().ReadBufferLen() == 0 {
		r.announce()
	}
	for full && ctx.Err() == nil {
		timer := time.NewTimer(statusEvery)
		select {
		case <-ctx.Done():
		case <-r.taken:
		case <-timer.C:
			if err := r.status(ctx, false); err != nil {
				timer.Stop()
				return err
			}
		}
		timer.Stop()
		r.mu.Lock()
		full = r.full()
		r.mu.Unlock()
	}
	return nil
}

// full reports whether the batch must be taken first. The caller holds the lock.
func (r *reader) full() bool {
	return len(r.batch.Events) >= r.feed.Cycle.MostEvents || r.batch.bytes >= r.feed.Cycle.MostBytes
}

func (r *reader) announce() {
	select {
	case r.More <- struct{}{}:
	default:
	}
}

// Next takes the current batch, and reuses the memory of an earlier one.
func (r *reader) Next(spare *batch) *batch {
	r.mu.Lock()
	b := r.batch
	*spare = batch{Events: spare.Events[:0], Items: spare.Items[:0]}
	r.batch = spare
	r.mu.Unlock()
	select {
	case r.taken <- struct{}{}:
	default:
	}
	return b
}

// Close ends the connection, after Run. If orderly, it sends the last confirmed position first.
func (r *reader) Close(orderly bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if orderly {
		_ = r.status(ctx, false)
		_ = r.conn.Conn().SetReadDeadline(time.Now().Add(2 * time.Second))
		_, _ = pglogrepl.SendStandbyCopyDone(ctx, r.conn)
	}
	_ = r.conn.Close(ctx)
}
