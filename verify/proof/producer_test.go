package proof

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/outbox"
)

const (
	accounts = 24
	// tooLarge is larger than topicTakes, and smaller than Append's limit.
	tooLarge   = 60_000
	topicTakes = "40000"
	perSecond  = 6 // transactions of ten events
)

// The header "kind" of an event; an ordinary payment has an empty one.
const (
	kindPoison = "poison" // its effect fails until an operator allows it
	kindSkip   = "skip"   // its effect skips it
	kindFuture = "future" // its id is too far ahead: quarantine

	// The operator cancels or discards these.
	kindCancel  = "cancel"  // it is scheduled in an hour
	kindDiscard = "discard" // the broker refuses it
	kindDrop    = "drop"    // its effect fails
)

// ddl creates tables without constraints that could hide a second effect.
const ddl = `
create table account (name text primary key, version bigint not null default 0);
create table paid (id uuid not null, account text not null, version bigint not null, kind text not null, scheduled boolean not null);
create table effect (ord bigint generated always as identity, id uuid not null, account text not null, version bigint not null);
create table allowed (id uuid primary key);
insert into account (name) select 'account-' || n from generate_series(0, 23) n`

// hasRoom bounds the backlog of processes that are always killed: all of it must drain at the end.
const hasRoom = `select (select count(*) from outbox_event) + (select count(*) from outbox_held) + (select count(*)
		from outbox_parked) < 300
	and (select count(*) from inbox_parked) < 20 and (%s) < 300`

func runProducer(ctx context.Context, s *stage) error {
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	for {
		var room bool
		err := s.db.QueryRow(ctx, fmt.Sprintf(hasRoom, undecided[os.Getenv(envDedup)])).Scan(&room)
		if err == nil && room {
			err = pay(context.WithoutCancel(ctx), s, mrand.IntN(accounts), randomSort)
		}
		if err != nil {
			fmt.Println("producer:", err) // the table paid shows whether it was committed
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// pay makes payments of ten accounts, beginning with number first, each an event of its sort.
func pay(ctx context.Context, s *stage, first int, sort func(account string) int) error {
	tx, err := s.db.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if err := payIn(ctx, tx, s, first, sort); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func payIn(ctx context.Context, tx pgx.Tx, s *stage, first int, sort func(account string) int) error {
	rows, err := tx.Query(ctx,
		`update account set version = version + 1 where name in (select 'account-' || ($1::int + n) % 24
				from generate_series(0, 9) n)
		returning name, version`, first)
	if err != nil {
		return err
	}
	type drawn struct {
		Name    string
		Version int64
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[drawn])
	if err != nil {
		return err
	}
	var events []event.Event
	for _, d := range list {
		e, err := payment(s.topic, d.Name, d.Version, sort(d.Name))
		if err != nil {
			return err
		}
		events = append(events, e)
		_, err = tx.Exec(ctx, `insert into paid values ($1, $2, $3, $4, $5)`, e.ID, e.Key, d.Version, e.Headers["kind"],
			!e.NotBefore.IsZero())
		if err != nil {
			return err
		}
	}
	keys := make([]string, len(events))
	for i := range events {
		keys[i] = events[i].Key
	}
	if err := outbox.LockKeys(ctx, tx, keys...); err != nil {
		return err
	}
	// Most producers append a single event.
	last := len(events) - 1
	return errors.Join(outbox.Append(ctx, tx, events[:last]...), outbox.Append(ctx, tx, events[last]))
}

// Some of the sorts that payment makes; most of the numbers are ordinary payments.
const (
	sorts        = 200
	sortRefused  = 40 // the broker refuses those of account-2 and account-3
	sortPoison   = 45 // the effects of account-0 and account-1 fail until the first or second release
	sortStubborn = 44 // they fail until the second release
	sortOrdinary = sorts - 1
	sortCancel   = sorts - 2
	sortDiscard  = sorts - 3
	sortDrop     = sorts - 4
)

// keyOrNone returns a unique key or none.
func keyOrNone(id uuid.UUID) string {
	if allowedAtOnce(id) {
		return ""
	}
	return id.String()
}

func randomSort(string) int {
	if os.Getenv(envCalm) != "" {
		return sortOrdinary
	}
	return mrand.IntN(sorts)
}

// payment makes an event of sort n.
func payment(topic, account string, version int64, n int) (event.Event, error) {
	payload, err := json.Marshal(map[string]any{"account_id": account, "version": version})
	e := event.Event{
		ID: event.NewID(), Topic: topic, Key: account, Type: "PaymentCreated", ContentType: event.ContentTypeJSON,
		Payload: payload, Headers: map[string]string{
			"version": strconv.FormatInt(version, 10), "kind": "",
			"account": account,
		},
	}
	switch {
	case n < 8:
		e.NotBefore = time.Now().Add(200 * time.Millisecond)
	case n < 16:
		e.ID = uuid.New() // not a v7
	case n < 24:
		e.Key = ""
	case n < 30:
		e.Headers["kind"] = kindSkip
	case n < 32:
		e.Key, e.Headers["kind"] = "", kindFuture
		e.ID = ahead(30 * 24 * time.Hour)
	case n < 34: // alone
		e.Key, e.Headers["kind"] = "", kindPoison
	case n < 36:
		e.Key = ""
		refused(&e)
	case n == sortCancel:
		e.Key, e.Headers["kind"] = "", kindCancel
		e.NotBefore = time.Now().Add(time.Hour)
	case n == sortDiscard:
		e.Key, e.Headers["kind"] = keyOrNone(e.ID), kindDiscard
		refused(&e)
	case n == sortDrop:
		e.Key, e.Headers["kind"] = keyOrNone(e.ID), kindDrop
	case n <= sortPoison: // only for some keys: a parked key waits for the operator
		switch account {
		case "account-0", "account-1":
			e.Headers["kind"] = kindPoison
			for n == sortStubborn && allowedAtOnce(e.ID) {
				e.ID = event.NewID()
			}
		case "account-2", "account-3":
			if n <= sortRefused {
				refused(&e)
			}
		}
	}
	return e, err
}

// refused makes an event too large for the broker.
func refused(e *event.Event) {
	e.Payload = make([]byte, tooLarge)
	_, _ = rand.Read(e.Payload)
	e.ContentType = "application/octet-stream"
}

// ahead returns a v7 id of a future time.
func ahead(d time.Duration) uuid.UUID {
	id := event.NewID()
	var low [8]byte
	copy(low[:], id[:8])
	millis := binary.BigEndian.Uint64(low[:])>>16 + uint64(d.Milliseconds())
	binary.BigEndian.PutUint64(low[:], millis<<16|uint64(id[6])<<8|uint64(id[7]))
	copy(id[:8], low[:])
	return id
}
