package operator

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/internal/sleep"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

const (
	replayBatch = 500
	replayHead  = 10
	// replayRoom is how many events the outbox may have before a replay waits: new events come first.
	replayRoom = 10_000
	replayWait = 200 * time.Millisecond
)

// Replay chooses events to publish once more: archived ones, or those that a query gives.
type Replay struct {
	// Query is a select whose rows are the events, in their order; From, To, Topic, Key, Tenant and Type must be unset
	// then. Its columns are named as those of outbox_event: message_id, topic, key, type and payload are required;
	// source, tenant, content_type (default application/json), headers and event_time (default or null: created_at if
	// there is one, or the time in a UUIDv7) are optional. The other columns of the outbox and of the archive are
	// ignored, and any further column is refused. It runs once, in a read-only transaction.
	Query string
	// From and To bound the time of publishing of archived events, To excluded. From is required. A To that is zero or
	// in the future means now, by the database's clock: the replay's own events are archived again, and must not be
	// chosen again.
	From, To time.Time
	Topic    string  // required
	Key      *string // nil: any
	Tenant   *string // nil: any
	Type     string  // empty: any
	// After is where an earlier replay of the same choice has stopped (ReplayResult.Last). 0: from the beginning. To
	// continue, also set To to its ReplayResult.To: its own events were published after that. With a Query it is the
	// number of rows to skip: to continue, the query's order must be the same.
	After int64
	// Rate bounds the events per second. 0: as fast as the relays publish them.
	Rate int
	// Progress is called when the replay has begun and after each batch; it must not block. It may be nil.
	Progress func(ReplayResult)
}

func (c Replay) validate() error {
	switch {
	case c.Rate < 0 || c.After < 0:
		return fmt.Errorf("a rate of %d after %d: want 0 or more", c.Rate, c.After)
	case c.Query != "":
		if !c.From.IsZero() || !c.To.IsZero() || c.Topic != "" || c.Key != nil || c.Tenant != nil || c.Type != "" {
			return errors.New("a query chooses by itself: leave From, To, Topic, Key, Tenant and Type out")
		}
		return nil
	case c.From.IsZero():
		return errors.New("say from when on: Replay.From")
	case c.Topic == "":
		return errors.New("say which topic: Replay.Topic")
	case !c.To.IsZero() && !c.From.Before(c.To):
		return fmt.Errorf("from %s to %s is nothing", c.From.Format(time.RFC3339), c.To.Format(time.RFC3339))
	}
	return nil
}

// ReplayPlan is what a Replay would do.
type ReplayPlan struct {
	Events int64 `json:"events"`
	IDs    int64 `json:"ids"`   // distinct ones
	Bytes  int64 `json:"bytes"` // of payloads
	Keys   int64 `json:"keys"`  // distinct ones, by tenant; those of a query by topic
	// When the first and the last of them were published; nil: there are none, or they are of a query.
	First *time.Time `json:"first"`
	Last  *time.Time `json:"last"`
	// Head is the first ten of them.
	Head []ReplayEvent `json:"head"`
}

// ReplayEvent is an event to replay, without its content.
type ReplayEvent struct {
	Pos         int64      `json:"pos"`          // its position in the archive, or the number of its row
	PublishedAt *time.Time `json:"published_at"` // nil: of a query
	MessageID   uuid.UUID  `json:"message_id"`
	Tenant      string     `json:"tenant"`
	Topic       string     `json:"topic"`
	Key         string     `json:"key"`
	Type        string     `json:"type"`
	Bytes       int        `json:"bytes"` // of the payload; -1: a tombstone
}

// StoppedError is the cause of a ctx by which an operator stopped a replay: context.WithCancelCause.
type StoppedError struct{ Operator, Reason string }

// Error names the operator and the reason.
func (e *StoppedError) Error() string { return "stopped by " + e.Operator + ": " + e.Reason }

// ReplayResult is the progress of a replay.
type ReplayResult struct {
	Events int64 `json:"events"`
	Last   int64 `json:"last"` // position of its last event; Replay.After continues after it
	// To is the end of the choice: Replay.To, or the time when the replay began. Zero: it has not begun.
	To time.Time `json:"to"`
}

// PlanReplay counts the events that a Replay would publish and returns the first ones. It changes nothing and may take
// long: the archive has no index by topic or key. Of a query it reads only the first rows: a later one may still be
// refused.
func (o *Operator) PlanReplay(ctx context.Context, choice Replay) (p ReplayPlan, err error) {
	if err := choice.validate(); err != nil {
		return p, fmt.Errorf("relay: replay: %w", err)
	}
	if choice.Query != "" {
		if p, err = o.planQuery(ctx, choice); err != nil {
			return p, fmt.Errorf("relay: replay: %w", err)
		}
		return p, nil
	}
	args := choice.args(time.Now())
	if err := o.db.QueryRow(ctx, o.q(sql.ReplayPlan), args...).Scan(&p.Events, &p.IDs, &p.Bytes, &p.Keys, &p.First,
		&p.Last); err != nil {
		return p, fmt.Errorf("relay: replay: counting: %w", err)
	}
	rows, err := o.db.Query(ctx, o.q(sql.ReplayHead), append(args, replayHead)...)
	if err == nil {
		p.Head, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e ReplayEvent, err error) {
			e.Topic = choice.Topic
			err = row.Scan(&e.Pos, &e.PublishedAt, &e.MessageID, &e.Tenant, &e.Key, &e.Type, &e.Bytes)
			return e, err
		})
	}
	if err != nil {
		return p, fmt.Errorf("relay: replay: reading the first events: %w", err)
	}
	return p, nil
}

func (c Replay) args(now time.Time) []any {
	if c.To.IsZero() {
		c.To = now
	}
	return []any{c.From, c.To, c.Topic, c.Key, c.Tenant, c.Type, c.After}
}

// Replay appends events to the outbox again, in their old order, and the relays publish them. They keep their message
// ids, so that an inbox which knows the ids drops them as duplicates; ids older than its window go to quarantine. They
// get new numbers, after all events of the outbox: of one key, consumers see old facts after newer ones. They are
// marked as replayed (event.HeaderReplay): a consumer in watermark mode quarantines them. A consumer without
// deduplication applies them again.
//
// It works in batches, each a transaction, waits while the outbox is full, and ends early with ctx. After an early end,
// Last and To tell how to continue (Replay.After, Replay.To); after an error with an unknown COMMIT at most one batch
// is repeated. The audit has one row at the beginning and one at the end, with the cause of a ctx that ended.
func (o *Operator) Replay(ctx context.Context, choice Replay, reason string) (done ReplayResult, err error) {
	if err := choice.validate(); err != nil {
		return done, fmt.Errorf("relay: replay: %w", err)
	}
	step := o.archiveStep(&choice)
	if choice.Query != "" {
		q, err := o.openQuery(ctx, choice)
		if err != nil {
			return done, fmt.Errorf("relay: replay: %w", err)
		}
		defer q.close()
		step = q.step
	}
	if choice.To, err = o.replayEnd(ctx, choice); err != nil {
		return done, fmt.Errorf("relay: replay: finding its end: %w", err)
	}
	if err := o.replayAudit(ctx, audit.Replay, choice, done, reason, nil); err != nil {
		return done, err
	}
	done.Last, done.To = choice.After, choice.To
	if choice.Progress == nil {
		choice.Progress = func(ReplayResult) {}
	}
	choice.Progress(done)
	err = o.replay(ctx, choice, step, &done)
	// The audit's own context: an interrupted replay must be recorded, too.
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	failed := err
	if err != nil {
		failed = errors.Join(err, context.Cause(ctx))
	}
	if auditErr := o.replayAudit(late, audit.ReplayEnded, choice, done, reason, failed); err == nil {
		err = auditErr
	}
	if err != nil {
		return done, fmt.Errorf("relay: replay: after %d events, the last at %d: %w", done.Events, done.Last, err)
	}
	return done, nil
}

// replayEnd returns the choice's end, or now if that is earlier. It runs under the locks of all lanes: otherwise it
// would depend on chance whether the events of a concurrent settle are included.
func (o *Operator) replayEnd(ctx context.Context, choice Replay) (end time.Time, err error) {
	if choice.Query != "" {
		return time.Now(), nil // a query chooses its own rows
	}
	var until *time.Time
	if !choice.To.IsZero() {
		until = &choice.To
	}
	err = o.person.Begin(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, o.q(sql.LockTimeout), lockTimeout); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, o.q(sql.LockLanes)); err != nil {
			return fmt.Errorf("locking the lanes: %w", err)
		}
		return tx.QueryRow(ctx, o.q(sql.ReplayEnd), until).Scan(&end)
	})
	return end, err
}

// replayStep appends the next events in a transaction, at most so many. It returns false after the last.
type replayStep func(ctx context.Context, most int, done *ReplayResult) (more bool, err error)

func (o *Operator) archiveStep(choice *Replay) replayStep {
	return func(ctx context.Context, most int, done *ReplayResult) (more bool, err error) {
		return o.replayArchived(ctx, choice, most, done)
	}
}

func (o *Operator) replayArchived(ctx context.Context, choice *Replay, most int, done *ReplayResult) (more bool,
	err error,
) {
	var n, last int64
	choice.After = done.Last
	err = o.db.QueryRow(ctx, o.q(sql.Replay), append(choice.args(choice.To), most)...).Scan(&n, &last)
	if err != nil {
		return false, fmt.Errorf("appending: %w", err)
	}
	if n > 0 {
		done.Events, done.Last = done.Events+n, last
	}
	return n == int64(most), nil
}

func (o *Operator) replay(ctx context.Context, choice Replay, step replayStep, done *ReplayResult) error {
	most, rate := replayBatch, choice.Rate
	if rate > 0 {
		most = min(most, max(rate/4, 1)) // a few steps a second
	}
	for {
		began := time.Now()
		for room := false; !room; {
			if err := o.db.QueryRow(ctx, o.q(sql.ReplayRoom), replayRoom).Scan(&room); err != nil {
				return fmt.Errorf("looking at the backlog: %w", err)
			}
			if !room {
				_ = sleep.For(ctx, replayWait)
			}
		}
		before := done.Events
		more, err := step(ctx, most, done)
		choice.Progress(*done)
		if err != nil || !more {
			return err
		}
		if rate > 0 {
			_ = sleep.For(ctx, time.Duration(done.Events-before)*time.Second/time.Duration(rate)-time.Since(began))
		}
	}
}

func (o *Operator) replayAudit(ctx context.Context, action string, c Replay, done ReplayResult, reason string,
	failed error,
) error {
	return o.act(ctx, action, reason, func(pgx.Tx) (audited, error) {
		detail := map[string]any{"from": c.From, "to": c.To, "type": c.Type, "after": c.After}
		if c.Key != nil {
			detail["key"] = *c.Key
		}
		if c.Query != "" {
			// Its text may hold payloads.
			detail = map[string]any{"query_sha256": fmt.Sprintf("%x", sha256.Sum256([]byte(c.Query))), "after": c.After}
		}
		if action == audit.ReplayEnded {
			detail["events"], detail["last"], detail["complete"] = done.Events, done.Last, failed == nil
			if stopped, ok := errors.AsType[*StoppedError](failed); ok {
				detail["stopped"] = stopped.Error()
			}
		}
		a := audited{topic: c.Topic, detail: detail}
		if c.Tenant != nil {
			a.tenant = *c.Tenant
		}
		return a, nil
	})
}
