package relay

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

	"github.com/effectonce/effectonce/relay/internal/pg"
)

const (
	// walStatusEvery is the pause between two status messages: what was confirmed, and that we live.
	walStatusEvery = time.Second
	// walSilence is how long the server may say nothing although it was asked. Then the connection counts as lost.
	walSilence = 30 * time.Second
)

// walReader owns a replication connection: one goroutine reads it and writes the status messages, because a connection
// knows one deadline for both.
type walReader struct {
	conn    *pgconn.PgConn
	cfg     *Config
	decoder *walDecoder

	confirmed atomic.Uint64 // what the server may be told of
	told      uint64
	received  uint64

	mu    sync.Mutex
	batch *walBatch     // what the follower has not taken yet
	more  chan struct{} // there is something in it
	urged chan struct{} // the server wants to know what is confirmed, as it does before it ends
	room  chan struct{} // it was taken
}

func (r *Relay) dialReplication(ctx context.Context) (*pgconn.PgConn, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Lease)
	defer cancel()
	return pg.DialReplication(ctx, r.db, "effectonce relay wal")
}

// startReader begins to stream a slot from a place.
func startReader(ctx context.Context, conn *pgconn.PgConn, cfg *Config, slot string, from uint64) (*walReader, error) {
	timed, cancel := context.WithTimeout(ctx, cfg.Lease)
	defer cancel()
	err := pglogrepl.StartReplication(timed, conn, slot, pglogrepl.LSN(from), pglogrepl.StartReplicationOptions{PluginArgs: []string{
		"proto_version '1'", "publication_names '" + slot + "'", "binary 'true'", "messages 'true'",
	}})
	if err != nil {
		return nil, fmt.Errorf("relay: reading the replication slot %s: %w", slot, err)
	}
	w := &walReader{
		conn: conn, cfg: cfg, decoder: newWALDecoder(), batch: &walBatch{}, more: make(chan struct{}, 1), urged: make(chan struct{}, 1), room: make(chan struct{}, 1),
		told: from, received: from,
	}
	w.confirmed.Store(from)
	return w, nil
}

// status tells the server what is confirmed. Nothing else ever moves the slot.
func (w *walReader) status(ctx context.Context, ask bool) error {
	confirmed := w.confirmed.Load()
	if err := w.conn.Conn().SetWriteDeadline(time.Now().Add(w.cfg.Lease)); err != nil {
		return fmt.Errorf("relay: replication connection: %w", err)
	}
	// Where it is 0, pglogrepl would confirm what was received.
	err := pglogrepl.SendStandbyStatusUpdate(ctx, w.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: pglogrepl.LSN(max(w.received, confirmed)), WALFlushPosition: pglogrepl.LSN(confirmed), WALApplyPosition: pglogrepl.LSN(confirmed),
		ReplyRequested: ask,
	})
	if err != nil {
		return fmt.Errorf("relay: telling the server what is confirmed: %w", err)
	}
	w.told = confirmed
	return nil
}

// read fills batches until ctx ends or the connection does.
func (w *walReader) read(ctx context.Context) error {
	nc := w.conn.Conn()
	defer context.AfterFunc(ctx, func() { _ = nc.SetReadDeadline(time.Unix(1, 0)) })()
	heard, due := time.Now(), time.Now()
	for n := 0; ctx.Err() == nil; n++ {
		if n%64 == 0 || w.conn.Frontend().ReadBufferLen() == 0 {
			now := time.Now()
			if now.After(due) || w.confirmed.Load() != w.told {
				if err := w.status(ctx, now.Sub(heard) > walSilence/3); err != nil {
					return err
				}
				due = now.Add(walStatusEvery)
			}
			_ = nc.SetReadDeadline(due)
			if ctx.Err() != nil {
				return nil
			}
		}
		msg, err := w.conn.Frontend().Receive()
		var timeout net.Error
		switch {
		case errors.As(err, &timeout) && timeout.Timeout():
			if time.Since(heard) > walSilence {
				return fmt.Errorf("relay: the replication connection has been silent for %v", walSilence)
			}
			n = -1
			continue
		case err != nil:
			return fmt.Errorf("relay: replication connection: %w", err)
		}
		heard = time.Now()
		if err := w.take(ctx, msg); err != nil {
			return err
		}
	}
	return nil
}

// take takes one message of the server, and waits while the follower has enough.
func (w *walReader) take(ctx context.Context, msg pgproto3.BackendMessage) error {
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
		return errWAL
	}
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		return w.keepalive(ctx, data[1:])
	case pglogrepl.XLogDataByteID:
		if len(data) < 25 {
			return errWAL
		}
		return w.decode(ctx, data)
	}
	return nil
}

// keepalive: the server has nothing for us up to a place. That is only said further when it is not in the middle of a
// transaction; it is confirmed when all that came before is.
func (w *walReader) keepalive(ctx context.Context, b []byte) error {
	ka, err := pglogrepl.ParsePrimaryKeepaliveMessage(b)
	if err != nil {
		return fmt.Errorf("%w: %w", errWAL, err)
	}
	w.received = max(w.received, uint64(ka.ServerWALEnd))
	if !w.decoder.inside {
		w.mu.Lock()
		w.batch.pos = max(w.batch.pos, uint64(ka.ServerWALEnd))
		w.mu.Unlock()
		w.announce()
	}
	if !ka.ReplyRequested {
		return nil
	}
	select {
	case w.urged <- struct{}{}:
	default:
	}
	return w.status(ctx, false)
}

func (w *walReader) decode(ctx context.Context, data []byte) error {
	w.received = max(w.received, binary.BigEndian.Uint64(data[1:]))
	w.mu.Lock()
	err := w.decoder.message(data[25:], w.batch)
	full := w.batch.full(w.cfg)
	w.mu.Unlock()
	if err != nil {
		return err
	}
	if full || w.conn.Frontend().ReadBufferLen() == 0 {
		w.announce()
	}
	for full && ctx.Err() == nil {
		timer := time.NewTimer(walStatusEvery)
		select {
		case <-ctx.Done():
		case <-w.room:
		case <-timer.C:
			if err := w.status(ctx, false); err != nil {
				timer.Stop()
				return err
			}
		}
		timer.Stop()
		w.mu.Lock()
		full = w.batch.full(w.cfg)
		w.mu.Unlock()
	}
	return nil
}

func (w *walReader) announce() {
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// next gives the follower what there is, in exchange for room.
func (w *walReader) next(spare *walBatch) *walBatch {
	w.mu.Lock()
	b := w.batch
	*spare = walBatch{events: spare.events[:0], items: spare.items[:0]}
	w.batch = spare
	w.mu.Unlock()
	select {
	case w.room <- struct{}{}:
	default:
	}
	return b
}

// close tells the server the last of what is confirmed, and ends the connection. Nobody reads any more.
func (w *walReader) close(orderly bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if orderly {
		_ = w.status(ctx, false)
		_ = w.conn.Conn().SetReadDeadline(time.Now().Add(2 * time.Second))
		_, _ = pglogrepl.SendStandbyCopyDone(ctx, w.conn)
	}
	_ = w.conn.Close(ctx)
}
