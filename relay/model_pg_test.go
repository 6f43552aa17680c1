//go:build !race

package relay

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay/internal/cycle"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/sql"
)

// TestModelIsPostgres runs each statement of the model on random small tables, in the model's database and in Postgres,
// and compares the results and the tables afterwards. Columns that the model lacks are not compared: times, attempts,
// reasons. EFFECTONCE_TEST_SEED repeats a run, EFFECTONCE_TEST_RUNS sets the number of cases of each statement.
func TestModelIsPostgres(t *testing.T) {
	if testing.Short() {
		t.Skip("runs each operation of the model on Postgres")
	}
	t.Parallel()
	seed := draw.Seed(t)
	runs, _ := strconv.Atoi(os.Getenv("EFFECTONCE_TEST_RUNS"))
	db := pgtest.New(t, migrations.Outbox)
	c := &modelCompare{t: t, conn: db.Connect(t), rnd: rand.New(rand.NewPCG(seed, 7)), sql: map[string]string{}}
	for _, sql := range Queries(t) {
		c.sql[statementName(sql)] = strings.ReplaceAll(sql, "{schema}", "")
	}
	c.exec("delete from outbox_lane where lane >= $1", modelLanes)
	var last int64
	if err := c.conn.QueryRow(t.Context(), c.sql["highest"]).Scan(&c.ids, &last); err != nil {
		t.Fatal(err)
	}
	if err := c.conn.QueryRow(t.Context(), `select outbox_id || '.5' from outbox_meta`).Scan(&c.epoch); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(modelOps)) {
		// transactions have no table, no relay is gone for ten leases here, and most lanes are missing
		if slices.Contains(beyondModel, name) {
			continue
		}
		for i := range max(runs, 12) {
			if !c.compare(name) {
				t.Fatalf("%s: case %d of seed %d", name, i, seed)
			}
		}
	}
	t.Logf("seed %d: %d statements, each %d times; %d of them changed a table, %d answered with rows", seed,
		len(modelOps)-len(beyondModel), max(runs, 12), c.changed, c.answered)
}

var beyondModel = []string{"holders", "ended", "prune", "unfit"}

type modelCompare struct {
	t    *testing.T
	conn *pgx.Conn
	rnd  *rand.Rand
	sql  map[string]string
	ids  string // the real numbering of ids
	// epoch is the real incarnation at the beginning of each case.
	epoch string

	changed, answered int
}

func (c *modelCompare) exec(sql string, args ...any) {
	c.t.Helper()
	if _, err := c.conn.Exec(c.t.Context(), sql, args...); err != nil {
		c.t.Fatalf("%s: %v", sql, err)
	}
}

// compare runs one random case of a statement. It reports whether both databases agree.
func (c *modelCompare) compare(name string) bool {
	c.t.Helper()
	m := c.random()
	args := c.args(name, m)
	before := m.s.db
	c.load(m)
	rows, err := modelOps[name](m, args)
	if m.s.bad != 0 { // more open entries than the model can store
		return true
	}
	if err != nil {
		m.s.db = before
	}
	realArgs := slices.Clone(args)
	for i, a := range realArgs {
		switch a {
		case numbering(1):
			realArgs[i] = c.ids
		case epochName(0):
			realArgs[i] = c.epoch
		}
	}
	realRows, realErr := c.run(c.sql[name], realArgs)
	if name == "settle acked" {
		realRows = nil // null: no trigger keeps a row
	}
	got, want := c.text(realRows, name), c.text(rows, name)
	after := c.read(m, &before)
	if m.s.db != before {
		c.changed++
	}
	if len(rows) > 0 {
		c.answered++
	}
	if code(err) == code(realErr) && got == want && after == m.s.db {
		return true
	}
	c.t.Errorf("%s %v\nevents %q\nbefore   %+v\nmodel    %+v\npostgres %+v\nmodel's rows\n%s\npostgres' "+
		"rows\n%s\nerrors: model %v, postgres %v",
		name, args, m.world.keys, before, m.s.db, after, want, got, err, realErr)
	return false
}

func code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// run runs a statement as a claim does, with the same settings.
func (c *modelCompare) run(statement string, args []any) (all [][]any, err error) {
	ctx := c.t.Context()
	err = pgx.BeginFunc(ctx, c.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sql.Settings, pg.Async, "20s", "10s"); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, statement, args...)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
		return err
	})
	return all, err
}

// text formats rows for the comparison. It keeps their order only if the statement promises one.
func (c *modelCompare) text(rows [][]any, name string) string {
	lines := make([]string, 0, len(rows))
	for _, row := range rows {
		var b strings.Builder
		for _, v := range row {
			switch v := v.(type) {
			case nil, time.Time:
				continue
			case []byte:
				if v == nil {
					continue
				}
				fmt.Fprintf(&b, "|%x", v)
			case [16]byte:
				fmt.Fprintf(&b, "|%v", uuid.UUID(v))
			case string:
				fmt.Fprintf(&b, "|%s", c.common(v))
			default:
				fmt.Fprintf(&b, "|%v", v)
			}
		}
		lines = append(lines, b.String())
	}
	if name != "open" && name != "lock" && name != "members" {
		slices.Sort(lines)
	}
	return strings.Join(lines, "\n")
}

// common translates numberings of ids, and incarnations, into the model's.
func (c *modelCompare) common(v string) string {
	if v == c.ids {
		return numbering(1)
	}
	if id, number, ok := strings.Cut(v, "."); ok && len(id) == 36 {
		n, _ := strconv.Atoi(number)
		return epochName(modelIncarnation(n))
	}
	return v
}

// modelIncarnation translates a real incarnation: those of the tests are small, a raised one is a time.
func modelIncarnation(n int) uint8 {
	if n > 1000 {
		return 1
	}
	return 0
}

// random makes a state with random tables.
func (c *modelCompare) random() *modelRun {
	rnd := c.rnd
	w := &modelWorld{}
	for range modelEvents {
		w.keys += string("AAABBCU-"[rnd.IntN(8)])
	}
	w.prepare()
	w.lanes = modelLanes
	m := &modelRun{world: w}
	m.s.server = 1
	db := &m.s.db
	db.system, db.last = 1+uint8(rnd.IntN(4)/3), 9
	ids, seqs := rnd.Perm(9), rnd.Perm(9)
	for ev := range uint8(modelEvents) {
		row := modelRow{place: uint8(rnd.IntN(5)), id: uint8(ids[ev]) + 1}
		m.s.drawn[ev] = row.id
		switch row.place {
		case nowhere:
			row = modelRow{}
		case inHeld:
			row.seq, row.partition, row.sent, row.maybe = int32(seqs[ev])+1, int8(rnd.IntN(3))-1, rnd.IntN(2) == 0,
				rnd.IntN(4) == 0
		case inParked:
			row.alone, row.maybe = w.keys[ev] == '-' || rnd.IntN(4) == 0, rnd.IntN(2) == 0
			row.releasing = row.alone && rnd.IntN(2) == 0
		case inScheduled:
			row.id, row.seq, row.due = 0, int32(ev)+1, rnd.IntN(2) == 0
			m.s.drawn[ev] = 0
		}
		db.rows[ev] = row
	}
	for lane := range modelLanes {
		l := &db.lanes[lane]
		l.owner, l.fence, l.expired = uint8(rnd.IntN(4)), uint8(rnd.IntN(2)+1), rnd.IntN(2) == 0
		l.expired = l.expired || l.owner == 0
		l.reserved = int32(rnd.IntN(2)+1) * cycle.BlockSize
		for n := range rnd.IntN(2 + rnd.IntN(2)) {
			l.journal[n] = c.entry(m, lane, n)
		}
	}
	for k := range db.marks {
		db.marks[k] = uint8(rnd.IntN(3))
	}
	for owner := range db.members {
		if owner > 0 {
			db.members[owner] = uint8(rnd.IntN(3))
		}
	}
	db.paused = uint8(rnd.IntN(4))
	return m
}

// entry makes an open entry with existing and missing rows.
func (c *modelCompare) entry(m *modelRun, lane, n int) modelEntry {
	e := modelEntry{first: int32(n*20) + 1}
	for ev := range uint8(modelEvents) {
		if id := m.s.drawn[ev]; id != 0 && int(m.world.of(ev).lane) == lane && c.rnd.IntN(3) > 0 {
			e.ids[e.n] = id
			e.n++
		}
	}
	if e.n == 0 {
		e.ids[0], e.n = 30, 1
	}
	c.rnd.Shuffle(int(e.n), func(i, j int) { e.ids[i], e.ids[j] = e.ids[j], e.ids[i] })
	for k := range e.n {
		e.seqs[k] = e.first + 3*int32(k)
	}
	return e
}

// load writes the model's tables to Postgres.
func (c *modelCompare) load(m *modelRun) {
	c.t.Helper()
	db, b := &m.s.db, &pgx.Batch{}
	b.Queue("delete from outbox_event")
	b.Queue("delete from outbox_held")
	b.Queue("delete from outbox_parked")
	b.Queue("delete from outbox_parked_key")
	b.Queue("delete from outbox_scheduled")
	b.Queue("delete from outbox_claim")
	b.Queue("delete from relay_member")
	b.Queue("delete from outbox_paused_topic")
	b.Queue("select setval('outbox_event_id_seq', $1)", int64(db.last))
	b.Queue("update outbox_meta set incarnation = 5, system_identifier = c.system_identifier + $1, timeline = "+
		"left(pg_walfile_name(pg_current_wal_lsn()), 8) from pg_control_system() c", int64(db.system)-1)
	for ev := range uint8(modelEvents) {
		c.loadRow(b, m, ev)
	}
	for lane := range db.lanes {
		l := &db.lanes[lane]
		var owner *uuid.UUID
		if l.owner != 0 {
			id := ownerID(l.owner)
			owner = &id
		}
		b.Queue("update outbox_lane set owner = $2, fence = $3, reserved_seq = $4, lease_until = clock_timestamp() + "+
			"case when $5 then -1 else 1 end * interval '30 minutes' where lane = $1",
			int16(lane), owner, int64(l.fence), int64(l.reserved), l.expired)
		for _, e := range l.journal {
			if e.first == 0 {
				continue
			}
			var ids, seqs []int64
			for k := range e.n {
				ids, seqs = append(ids, int64(e.ids[k])), append(seqs, int64(e.seqs[k]))
			}
			b.Queue("insert into outbox_claim values ($1, $2, $3, $4)", int16(lane), int64(e.first), ids, seqs)
		}
	}
	for _, k := range modelKeyOf {
		if k.mark >= 0 && db.marks[k.mark] != unmarked {
			b.Queue("insert into outbox_parked_key (lane, tenant, topic, key, state, reason, code) values ($1, '', "+
				"$2, $3, $4, '', '')",
				k.lane, k.topic, k.key, []string{"", "parked", "releasing"}[db.marks[k.mark]])
		}
	}
	for owner, state := range db.members {
		if state != noMember {
			b.Queue("insert into relay_member (owner, joined, seen, lease_until) values ($1, '-infinity', "+
				"clock_timestamp() - $2 * interval '2 hours', clock_timestamp() + case when $2 = 1 then -1 else 1 "+
				"end * interval '30 minutes')",
				ownerID(uint8(owner)), int(state)-memberAlive)
		}
	}
	for _, topic := range topicsOf(db.paused) {
		b.Queue("insert into outbox_paused_topic (topic, paused_by, reason) values ($1, 'o', 'r')", topic)
	}
	if err := c.conn.SendBatch(c.t.Context(), b).Close(); err != nil {
		c.t.Fatalf("loading: %v", err)
	}
}

func (c *modelCompare) loadRow(b *pgx.Batch, m *modelRun, ev uint8) {
	row, k := &m.s.db.rows[ev], m.world.of(ev)
	switch row.place {
	case inEvent:
		b.Queue("insert into outbox_event (id, message_id, topic, key, type, content_type) overriding system value "+
			"values ($1, $2, $3, $4, 'T', 'c')",
			int64(row.id), modelIDs[ev], k.topic, k.key)
	case inHeld:
		b.Queue("insert into outbox_held (lane, id, topic, partition, seq, sent, maybe, message_id, source, tenant, "+
			"key, type, content_type, created_at) values ($1, $2, $3, $4, $5, $6, $7, $8, '', '', $9, 'T', 'c', now())",
			k.lane, int64(row.id), k.topic, int32(row.partition), int64(row.seq), row.sent, row.maybe, modelIDs[ev],
			k.key)
	case inParked:
		b.Queue("insert into outbox_parked (lane, id, alone, releasing, maybe_published, attempts, message_id, "+
			"source, tenant, topic, key, type, content_type, created_at) values ($1, $2, $3, $4, $5, 0, $6, '', '', "+
			"$7, $8, 'T', 'c', now())",
			k.lane, int64(row.id), row.alone, row.releasing, row.maybe, modelIDs[ev], k.topic, k.key)
	case inScheduled:
		b.Queue("insert into outbox_scheduled (due, seq, message_id, topic, key, type, content_type) overriding "+
			"system value values (now() + case when $1 then -1 else 1 end * interval '1 hour' + $2::integer * "+
			"interval '1 second', $2, $3, $4, $5, 'T', 'c')",
			row.due, int64(row.seq), modelIDs[ev], k.topic, k.key)
	}
}

// read reads Postgres' tables into the model.
func (c *modelCompare) read(m *modelRun, before *modelDB) (db modelDB) {
	c.t.Helper()
	ctx := c.t.Context()
	each := func(sql string, do func(v []any)) {
		rows, err := c.conn.Query(ctx, sql)
		if err == nil {
			_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
				v, err := row.Values()
				if err == nil {
					do(v)
				}
				return struct{}{}, err
			})
		}
		if err != nil {
			c.t.Fatalf("%s: %v", sql, err)
		}
	}
	put := func(id any, row modelRow) {
		ev := eventOf(uuid.UUID(id.([16]byte)))
		if db.rows[ev].place != nowhere {
			c.t.Errorf("e%d is in two tables", ev)
		}
		db.rows[ev] = row
	}
	each("select message_id, id from outbox_event",
		func(v []any) { put(v[0], modelRow{place: inEvent, id: uint8(v[1].(int64))}) })
	each("select message_id, id, seq, partition, sent, maybe from outbox_held", func(v []any) {
		put(v[0], modelRow{
			place: inHeld, id: uint8(v[1].(int64)), seq: int32(v[2].(int64)),
			partition: int8(v[3].(int32)), sent: v[4].(bool), maybe: v[5].(bool),
		})
	})
	each("select message_id, id, alone, releasing, maybe_published from outbox_parked", func(v []any) {
		put(v[0], modelRow{
			place: inParked, id: uint8(v[1].(int64)), alone: v[2].(bool), releasing: v[3].(bool),
			maybe: v[4].(bool),
		})
	})
	each("select message_id, seq, due <= now() from outbox_scheduled", func(v []any) {
		put(v[0], modelRow{place: inScheduled, seq: int32(v[1].(int64)), due: v[2].(bool)})
	})
	each("select lane, coalesce(owner, '00000000-0000-0000-0000-000000000000'), fence, lease_until <= "+
		"clock_timestamp(), reserved_seq from outbox_lane", func(v []any) {
		l := &db.lanes[v[0].(int16)]
		l.owner, l.fence, l.expired, l.reserved = v[1].([16]byte)[15], uint8(v[2].(int64)), v[3].(bool),
			int32(v[4].(int64))
	})
	each("select lane, first_seq, ids, seqs from outbox_claim order by lane, first_seq", func(v []any) {
		e := modelEntry{first: int32(v[1].(int64))}
		for k, id := range v[2].([]any) {
			e.ids[e.n], e.seqs[e.n] = uint8(id.(int64)), int32(v[3].([]any)[k].(int64))
			e.n++
		}
		j := &db.lanes[v[0].(int16)].journal
		j[slices.IndexFunc(j[:], func(e modelEntry) bool { return e.first == 0 })] = e
	})
	each("select topic, key, state from outbox_parked_key", func(v []any) {
		for _, k := range modelKeyOf {
			if k.mark >= 0 && k.topic == v[0] && k.key == v[1] {
				db.marks[k.mark] = uint8(slices.Index([]string{"", "parked", "releasing"}, v[2].(string)))
			}
		}
	})
	each("select owner, lease_until > clock_timestamp() and seen > clock_timestamp() - interval '1 hour' from "+
		"relay_member", func(v []any) {
		db.members[v[0].([16]byte)[15]] = memberExpired
		if v[1].(bool) {
			db.members[v[0].([16]byte)[15]] = memberAlive
		}
	})
	each("select topic from outbox_paused_topic", func(v []any) { db.paused |= topicBits([]string{v[0].(string)}) })
	each("select last_value from outbox_event_id_seq", func(v []any) { db.last = uint8(v[0].(int64)) })
	each("select m.incarnation, m.system_identifier = c.system_identifier from outbox_meta m, pg_control_system() c",
		func(v []any) {
			db.incarnation, db.system = modelIncarnation(int(v[0].(int32))), before.system
			if v[1].(bool) {
				db.system = 1
			}
		})
	return db
}
