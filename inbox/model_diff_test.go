//go:build !race

package inbox

import (
	"bytes"
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox/internal/sql"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// mReal has the same tables in Postgres and in the model.
type mReal struct {
	t      *testing.T
	in     *Inbox
	random *rand.Rand
	m      mDB
	events [mIDs]event.Event
	hashes [mKeys][]byte
	// The versions of the marks, which the model leaves out.
	version [2]int64
}

// TestModelDatabase: random statements with random arguments have the same result in the model and in Postgres.
func TestModelDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, "inbox")
	in, err := New(db.Pool, "ledger", Config{Window: 24 * time.Hour, AllowShortWindow: true, DaysAhead: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	seed := draw.Seed(t)
	r := &mReal{t: t, in: in, random: rand.New(rand.NewPCG(seed, 1))}
	for e := range r.events {
		k := string(rune('a' + e%mKeys))
		r.events[e] = event.Event{ID: event.NewID(), Topic: "payments", Key: k}
		if e%2 == 1 {
			r.events[e].ID = uuid.New()
		}
		r.hashes[e%mKeys] = sql.KeyHash("", "payments", k)
	}
	ops := []func() string{
		r.insert, r.forget, r.park, r.park, r.quarantine, r.reads, r.release, r.counts, r.leave,
		r.again, r.bound, r.progress, r.progress, r.discard, r.move,
	}
	var did []string
	for range 150 {
		did = append(did, ops[r.random.IntN(len(ops))]())
		if got := r.dump(); got != r.m {
			t.Fatalf("after %v\nPostgres %+v\nmodel    %+v", did[max(0, len(did)-8):], got, r.m)
		}
	}
}

func (r *mReal) exec(sql string, args ...any) int64 {
	r.t.Helper()
	tag, err := r.in.db.Exec(r.t.Context(), pgschema.Expand(sql, r.in.cfg.prefix), args...)
	if err != nil {
		r.t.Fatalf("%v\n%s", err, sql)
	}
	return tag.RowsAffected()
}

func (r *mReal) some() (set bits)  { return bits(r.random.IntN(1 << mIDs)) }
func (r *mReal) one() (e uint8)    { return uint8(r.random.IntN(mIDs)) }
func (r *mReal) key(e uint8) uint8 { return e%mKeys + 1 }
func (r *mReal) numbers(of func(e uint8) bool) (list []uuid.UUID) {
	for e := range uint8(mIDs) {
		if of(e) {
			list = append(list, r.events[e].ID)
		}
	}
	return list
}

func (r *mReal) set(sql string, args ...any) (set bits) {
	r.t.Helper()
	rows, err := r.in.db.Query(r.t.Context(), sql, args...)
	if err != nil {
		r.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (uuid.UUID, error) {
		values, err := row.Values()
		if err != nil {
			return uuid.Nil, err
		}
		return values[0].([16]byte), nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	for e := range uint8(mIDs) {
		if slices.Contains(ids, r.events[e].ID) {
			set |= bit(e)
		}
	}
	return set
}

// both splits a set between the two tables.
func (r *mReal) both(set bits) (days, others string) {
	return uuidArray(r.numbers(func(e uint8) bool { return set.has(e) && e%2 == 0 })),
		uuidArray(r.numbers(func(e uint8) bool { return set.has(e) && e%2 == 1 }))
}

// unknown returns the contents that are not known, one for each id.
func unknown(ids string) string {
	if ids == "{}" {
		return ids
	}
	return intArray(make([]int64, strings.Count(ids, ",")+1))
}

func (r *mReal) insert() string {
	set := r.some()
	days, others := r.both(set)
	got := r.set(r.in.q(sqlInsertDay), "ledger", days, unknown(days)) |
		r.set(r.in.q(sqlInsertAny), "ledger", others, unknown(others))
	if want := r.m.insert(set); got != want {
		r.t.Fatalf("inserting %v: %v are new, in the model %v", set, got, want)
	}
	for e := range uint8(mIDs) {
		if got.has(e) {
			r.m.row[e] = 1
		}
	}
	return "insert"
}

// forget deletes rows of earlier transactions, too.
func (r *mReal) forget() string {
	set := r.some()
	days, others := r.both(set)
	var b pgx.Batch // one implicit transaction
	b.Queue("select set_config('effectonce.inbox', 'forget', true)")
	b.Queue(r.in.q(sqlForgetDay), "ledger", days)
	b.Queue(r.in.q(sqlForgetAny), "ledger", others)
	if err := r.in.db.SendBatch(r.t.Context(), &b).Close(); err != nil {
		r.t.Fatal(err)
	}
	for e := range uint8(mIDs) {
		if set.has(e) {
			r.m.row[e] = 0
		}
	}
	return "forget"
}

// list returns the columns of a row of inbox_parked.
func (r *mReal) list(e uint8, key uint8, kind string) []any {
	var list rows
	var hash []byte
	if key > 0 {
		hash = r.hashes[key-1]
	}
	list.add(&r.events[e], r.events[e].ID, hash, kind, "", "", 0)
	return list.args("ledger")
}

func (r *mReal) park() string {
	e, alone := r.one(), r.random.IntN(3) == 0
	row, name := mParked{event: e + 1, key: r.key(e), kind: mBehind}, kindBehind
	if r.random.IntN(2) == 0 {
		row.kind, name = mFailed, kindFailed
	}
	if alone {
		row.key = 0
	} else {
		r.exec(sqlMark, "ledger", r.hashes[row.key-1], []byte{}, "payments", []byte(r.events[e].Key), "", "")
		r.m.mark[row.key-1] = max(r.m.mark[row.key-1], 1)
	}
	_, err := r.in.db.Exec(r.t.Context(), r.in.q(sqlPark), r.list(e, row.key, name)...)
	if listed := r.m.park(row); listed != (err == nil) || err != nil && !pgerr.Is(err, pgerr.UniqueViolation) {
		r.t.Fatalf("parking: %v, in the model listed: %v", err, listed)
	}
	return "park"
}

func (r *mReal) quarantine() string {
	e := r.one()
	got := r.set(r.in.q(sqlQuarantine), r.list(e, 0, kindQuarantined)...)
	want := bits(0)
	if r.m.quarantine(bit(e)) != 0 && r.m.park(mParked{event: e + 1, kind: mQuarantined}) {
		want = bit(e)
	}
	if got != want {
		r.t.Fatalf("quarantining: %v, in the model %v", got, want)
	}
	return "quarantine"
}

func (r *mReal) reads() string {
	set := r.some()
	if got, want := r.set(r.in.q(sqlOpenIDs), "ledger", uuidArray(r.numbers(set.has))), r.m.openIDs(set); got != want {
		r.t.Fatalf("open ids: %v, in the model %v", got, want)
	}
	var open bool
	if err := r.in.db.QueryRow(r.t.Context(), r.in.q(sqlOpen), "ledger").Scan(&open); err != nil || open != r.m.open() {
		r.t.Fatalf("open: %v %v, in the model %v", open, err, r.m.open())
	}
	var hash []byte
	var full bool
	var marked, bound bits
	rows, err := r.in.db.Query(r.t.Context(), r.in.q(sqlMarks), "ledger", r.hashes[:])
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{fromHex{&hash}, &full}, func() error {
			k := uint8(slices.IndexFunc(r.hashes[:], func(h []byte) bool { return bytes.Equal(h, hash) }))
			marked |= bit(k)
			if full {
				bound |= bit(k)
			}
			return nil
		})
	}
	if m, b := r.m.marks(1<<mKeys - 1); err != nil || m != marked || b != bound {
		r.t.Fatalf("marks %v %v %v, in the model %v %v", marked, bound, err, m, b)
	}
	return "reads"
}

// id returns the inbox_parked.id of an event; 0: not parked.
func (r *mReal) id(event uint8) (id int64) {
	_ = r.in.db.QueryRow(r.t.Context(), pgschema.Expand("select id from {schema}inbox_parked where message_id = "+
		"$1::text::uuid", r.in.cfg.prefix), r.events[event].ID.String()).Scan(&id)
	return id
}

func (r *mReal) release() string {
	e := r.one()
	if r.random.IntN(2) == 0 {
		r.exec(sql.ReleaseKey, "ledger", r.hashes[r.key(e)-1])
		r.exec(sql.ResetReleases, "ledger", r.hashes[r.key(e)-1])
		r.m.releaseKey(r.key(e))
		return "release key"
	}
	r.exec(sql.ReleaseEvent, r.id(e))
	if at := slices.IndexFunc(r.m.parked[:], func(p mParked) bool { return p.event == e+1 }); at >= 0 {
		r.m.releaseEvent(at)
	}
	return "release event"
}

func (r *mReal) counts() string {
	e := r.one()
	switch r.random.IntN(3) {
	case 0:
		r.exec(sqlCountRelease, "ledger", r.id(e))
		r.m.countRelease(e + 1)
		return "count a release"
	case 1:
		r.exec(sqlNoteBatch, "ledger", r.id(e))
		r.m.noteBatch(e + 1)
		return "note a batch"
	}
	r.exec(sqlUncountRelease, "ledger", r.id(e), r.random.IntN(2) == 0)
	r.m.uncountRelease(e + 1)
	return "take it back"
}

func (r *mReal) leave() string {
	e := r.one()
	r.exec(sqlLeave, "ledger", []int64{r.id(e)})
	r.m.leave(bit(e))
	r.exec(sql.Unmark, "ledger", r.hashes[r.key(e)-1])
	r.m.unmark(r.key(e))
	return "leave"
}

// again parks the head of a key again.
func (r *mReal) again() string {
	key := uint8(r.random.IntN(mKeys)) + 1
	head := &record{}
	err := r.in.db.QueryRow(r.t.Context(), r.in.q(sqlHead), "ledger", r.hashes[key-1], 0, 1).Scan(&head.id,
		&head.messageID, &head.topic, &head.partition, &head.offset, &head.millis, fromHex{&head.key},
		fromHex{&head.value}, &head.headers, &head.kind, &head.attempts, &head.code, &head.content)
	at := r.m.head(key, 0)
	if (err == nil) != (at >= 0) {
		r.t.Fatalf("head: %v, in the model %d", err, at)
	}
	if at < 0 {
		return "no head"
	}
	if p := r.m.parked[at]; head.messageID != r.events[p.event-1].ID.String() || head.attempts != int(p.attempts) {
		r.t.Fatalf("head %+v, in the model %+v", head, p)
	}
	r.exec(sqlFailedAgain, "ledger", head.id, "", "", 1)
	r.exec(sqlParkAgain, "ledger", r.hashes[key-1], "", "")
	r.m.failedAgain(at)
	return "park again"
}

func (r *mReal) bound() string {
	r.in.cfg.ParkedPerKey = 1 + r.random.IntN(2)
	if err := r.in.bound(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	r.m.bound(r.in.cfg.ParkedPerKey)
	return "bound"
}

// eventAt is an event of which only the offset counts.
func eventAt(offset int8) *event.Event {
	return &event.Event{Position: event.Position{Offset: int64(offset)}}
}

func (r *mReal) progress() string {
	q, offset := r.random.IntN(2), int8(r.random.IntN(6))
	p, ctx, name := &r.m.progress[q], context.Background(), partitionName{"payments", int32(q)}
	switch r.random.IntN(6) {
	case 0:
		g := &assignment{} // a process that starts
		if f := r.in.load(ctx, name, g); f != nil {
			r.t.Fatal(f.err)
		}
		if f := r.in.writeRange(ctx, name, g, eventAt(offset), int64(offset)+2); f != nil {
			r.t.Fatal(f.err)
		}
		p.write(offset, offset+2)
		return "range"
	case 1:
		r.exec(sqlPass, "ledger", "payments", q, offset, nil, nil, 0, -1)
		p.pass(offset)
		return "pass"
	case 2:
		g := &assignment{}
		if f := r.in.load(ctx, name, g); f != nil {
			r.t.Fatal(f.err)
		}
		spent, f := r.in.count(ctx, name, g, eventAt(offset))
		attempts, from := p.count(offset)
		if f != nil || spent != (from == offset && int(attempts) > r.in.cfg.CrashAttempts) {
			r.t.Fatalf("count: spent %v, in the model %d from %d", spent, attempts, from)
		}
		return "count"
	case 3:
		r.in.uncount(ctx, name, int64(offset))
		p.uncount(offset)
		return "uncount"
	case 4:
		full := r.random.IntN(2) == 0
		code := "x"
		if full {
			code = CodeListFull
		}
		g := &assignment{}
		if f := r.in.load(ctx, name, g); f != nil {
			r.t.Fatal(f.err)
		}
		r.exec(sqlHalted, "ledger", "payments", q, offset, code, "", g.beganIn(), g.storedAt())
		p.halt(offset, full)
		return "halt"
	}
	r.exec(sql.Resume, "ledger", "payments", q)
	p.resume()
	return "resume"
}

func (r *mReal) discard() string {
	e := r.one()
	at := slices.IndexFunc(r.m.parked[:], func(p mParked) bool { return p.event == e+1 })
	err := DiscardEvent(r.t.Context(), r.in.db, r.in.cfg.Schema, cmp.Or(r.id(e), 1<<40))
	if (err == nil) != (at >= 0) {
		r.t.Fatalf("discarding: %v, in the model at %d", err, at)
	}
	if at >= 0 {
		r.m.discard(r.m.parked[at])
	}
	return "discard"
}

// move replaces a mark, given its current version or an older one.
func (r *mReal) move() string {
	q := r.random.IntN(2)
	version, high := r.version[q]+1, r.m.high[q]+1
	old := r.version[q] > 0 && r.random.IntN(2) == 0
	if old {
		version--
	}
	sql := sqlAdvanceWatermark
	if version == 1 {
		sql = sqlFirstWatermark
	}
	n, _ := numberingOf(mEpoch)
	if rows := r.exec(sql, "ledger", "payments", q, n.outbox.String(), n.incarnation, version, []int16{mLane},
		[]int64{int64(high)}, 0); (rows == 0) != old {
		r.t.Fatalf("moving a mark from version %d of %d: %d rows", version-1, r.version[q], rows)
	}
	if old {
		return "move an old mark"
	}
	r.m.high[q], r.version[q] = high, version
	return "move a mark"
}

// dump reads the tables of Postgres into a mDB.
func (r *mReal) dump() (d mDB) {
	r.t.Helper()
	each := func(sql string, to []any, do func()) {
		rows, err := r.in.db.Query(r.t.Context(), pgschema.Expand(sql, r.in.cfg.prefix))
		if err == nil {
			_, err = pgx.ForEachRow(rows, to, func() error { do(); return nil })
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
	var id uuid.UUID
	number := func() int { return slices.IndexFunc(r.events[:], func(e event.Event) bool { return e.ID == id }) }
	var status, kind, state string
	each("select message_id, status from {schema}inbox_message union all select message_id, status from "+
		"{schema}inbox_message_any", []any{&id, &status}, func() {
		d.row[number()] = map[string]uint8{"done": 1, "discarded": 2}[status]
	})
	var hash []byte
	var full bool
	key := func() int { return slices.IndexFunc(r.hashes[:], func(h []byte) bool { return bytes.Equal(h, hash) }) }
	each("select key_hash, state, at_bound from {schema}inbox_parked_key", []any{&hash, &state, &full}, func() {
		d.mark[key()], d.atBound[key()] = map[string]uint8{"parked": 1, "releasing": 2}[state], full
	})
	var attempts int
	n := 0
	each("select message_id, key_hash, kind, state, release_attempts from {schema}inbox_parked order by id",
		[]any{&id, &hash, &kind, &state, &attempts}, func() {
			d.parked[n] = mParked{
				uint8(number() + 1), uint8(key() + 1),
				map[string]mKind{kindFailed: mFailed, kindBehind: mBehind, kindQuarantined: mQuarantined}[kind],
				state == "releasing", int8(attempts),
			}
			n++
		})
	var q int
	var from, to, tries int8
	each("select partition, seqs[1]::int from {schema}inbox_watermark where version > 0", []any{&q, &to},
		func() { d.high[q] = to })
	each("select partition, from_offset::int, to_offset::int, attempts, halted_at is not null, halted_code from "+
		"{schema}inbox_progress", []any{&q, &from, &to, &tries, &full, &kind}, func() {
		d.progress[q] = mProgress{
			known: true, from: from, to: to, attempts: tries, halted: full,
			full: kind == CodeListFull,
		}
	})
	return d
}
