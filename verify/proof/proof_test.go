package proof

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/relay/operator"
)

const envProof = "EFFECTONCE_PROOF"

func requireProof(t *testing.T) {
	t.Helper()
	if os.Getenv(envProof) == "" {
		t.Skip("takes minutes: make proof")
	}
}

// mode is a configuration of cells.
type mode struct {
	name     string
	cells    int
	roles    []role // have faults
	messages string // at messages with matching names; at others only if the first mode had none there
	make     func(t *testing.T) *cell
	extra    []disturbance
	verify   func(c *cell, t *testing.T)
}

var modes = []mode{
	{
		"by id", 2,
		[]role{producer, relaying, worker, operatorRole},
		".", newCell,
		[]disturbance{otherTimeline},
		(*cell).check,
	},
	{
		"by watermark", 1,
		[]role{worker, operatorRole},
		"inbox", cellByWatermark,
		[]disturbance{anotherOutbox},
		(*cell).checkRows,
	},
	{"from the WAL", 1, []role{relaying}, "COMMIT|Kafka", cellFromWAL, []disturbance{
		otherTimeline, anotherReader,
		everyFourth(anotherSlot), everyFourth(foreignSlot),
	}, (*cell).check},
}

// TestKills kills a process at every statement and COMMIT that it sends to Postgres and every request to Kafka: before
// it is sent, and after it took effect but before the reply is read. Nothing is lost, nothing is published that was not
// committed, no effect happens twice, the order of each key holds, and everything drains.
func TestKills(t *testing.T) {
	requireProof(t)
	runModes(t, true)
}

// TestFaults ends the connection there instead. A COMMIT may also take effect at the same time as its sender's next
// step, or long after it (P3.7, P9.3).
func TestFaults(t *testing.T) {
	requireProof(t)
	runModes(t, false)
}

func possibleFaults(kills bool, message string) []fault {
	if !kills && strings.HasPrefix(message, "COMMIT") {
		return []fault{before, after, soon, late}
	}
	return []fault{before, after}
}

// TestFewKills is one cell with a few kills at the critical messages: at the effect, and between the ack and the
// settle. It is short enough for verify/mutations, some of whose bugs it must find by the check of
// [TestKills].
func TestFewKills(t *testing.T) {
	t.Parallel()
	newCell(t).fewKills(t)
}

func TestFewKillsByWatermark(t *testing.T) {
	t.Parallel()
	cellByWatermark(t).fewKills(t)
}

func (c *cell) fewKills(t *testing.T) {
	t.Helper()
	c.plain = true
	c.startAll(t)
	for _, d := range []struct {
		role  role
		point point
	}{
		{worker, point{before, "proof: effect"}},
		{relaying, point{after, "Kafka Produce"}},
		{worker, point{after, commitOf("inbox: pass")}},
		{worker, point{before, commitOf("inbox: pass")}},
		{relaying, point{after, commitOf("relay: settle archived")}},
	} {
		g := newRegister(func(name string) []fault {
			if name == d.point.name {
				return []fault{d.point.fault}
			}
			return nil
		})
		c.arm(g, d.role)
		pgtest.Await(t, "a death "+d.point.String(), func() (bool, error) { return g.times(d.point) > 0, nil })
	}
	c.finish(t)
}

// TestKinds kills a process, and cuts a connection, at one message of each kind: at each room's selects, inserts,
// updates and so on, at its COMMITs, and at each request to Kafka. The seed draws the messages, the faults, and the
// modes of the two cells.
func TestKinds(t *testing.T) {
	t.Parallel()
	seed := draw.Seed(t)
	kinds := slices.Sorted(maps.Keys(ofKinds(statements(t))))
	for i, cell := range []string{"kills", "cuts"} {
		t.Run(cell, func(t *testing.T) {
			t.Parallel()
			m := modes[(seed+uint64(i))%uint64(len(modes))]
			m.roles = modes[0].roles
			r := &run{statements: kinds, byKind: true, faults: func(kind string) []fault {
				all := possibleFaults(cell == "kills", kind)
				return all[drawn(seed, kind)%uint64(len(all)):][:1]
			}}
			r.registers = []*register{newRegister(r.faults)}
			r.registers[0].skip = func(kind string) int { return int(drawn(seed, kind+" of "+cell) % 12) }
			r.cell(t, m, r.registers[0], cell == "kills")
			t.Logf("%s: %s", m.name, r.registers[0].summary())
			for _, m := range r.missing() {
				t.Errorf("no fault %s", m)
			}
		})
	}
}

// everyday are the kinds of statements that each cell sends soon; TestKinds does not wait for others.
var everyday = regexp.MustCompile(" (select|insert|update|delete|with)$")

// ofKinds returns the kinds of everyday statements, of COMMITs, and of the requests that each cell sends.
func ofKinds(statements map[string]string) map[string]bool {
	all := map[string]bool{"Kafka Produce": true, "Kafka Fetch": true, "Kafka OffsetCommit": true}
	for _, kind := range statements {
		if everyday.MatchString(kind) {
			all[kind] = true
			all[commitOf(roomOf(kind))] = true
		}
	}
	return all
}

func drawn(seed uint64, what string) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, seed, what)
	return h.Sum64()
}

// limit bounds the disturbances of a cell. Most need half of it; a busy machine needs more.
const limit = 10 * time.Minute

// cellIdleLimit without a fault or new message ends a cell, unless the run lacks a fault at a message that it has had.
const cellIdleLimit = time.Minute

// run is the faults of a test, in all modes.
type run struct {
	faults     func(name string) []fault
	statements []string
	byKind     bool // the names are those of kinds
	registers  []*register
}

func runModes(t *testing.T, kills bool) {
	t.Helper()
	r := &run{
		faults:     func(name string) []fault { return possibleFaults(kills, name) },
		statements: slices.Collect(maps.Keys(statements(t))),
	}
	for _, m := range modes {
		messages := regexp.MustCompile(m.messages)
		r.registers = append(r.registers, newRegister(func(name string) []fault {
			all := r.faults(name)
			if messages.MatchString(name) {
				return all
			}
			return slices.DeleteFunc(all, func(d fault) bool { return r.registers[0].times(point{d, name}) > 0 })
		}))
	}
	t.Run("cells", func(t *testing.T) {
		for i, m := range modes {
			n := 1
			if kills {
				n = m.cells
			}
			for range n {
				t.Run(m.name, func(t *testing.T) {
					t.Parallel()
					r.cell(t, m, r.registers[i], kills)
				})
			}
		}
	})
	for i, g := range r.registers {
		t.Logf("%s: %s", modes[i].name, g.summary())
		for _, m := range g.missing() {
			t.Errorf("%s: no fault %s", modes[i].name, m)
		}
	}
	for _, m := range r.missing() {
		t.Errorf("no fault %s: let a process send it, or list it in excused with a reason", m)
	}
}

// cell runs a cell until no fault is missing, and checks it.
func (r *run) cell(t *testing.T, m mode, g *register, kills bool) {
	t.Helper()
	c := m.make(t)
	c.kills, c.byKind = kills, r.byKind
	c.arm(g, m.roles...)
	c.startAll(t)
	c.disturb(t, r, g, slices.Concat(commonDisturbances, m.extra))
	c.finish(t)
	m.verify(c, t)
}

// missing lists the missing faults at the statements.
func (r *run) missing() (all []point) {
	for _, name := range r.statements {
		for _, d := range r.faults(name) {
			m := point{d, name}
			if !slices.ContainsFunc(r.registers, func(g *register) bool { return g.times(m) > 0 }) {
				all = append(all, m)
			}
		}
	}
	return all
}

// disturb repeats the disturbances until no fault is missing.
func (c *cell) disturb(t *testing.T, r *run, g *register, all []disturbance) {
	t.Helper()
	began := time.Now()
	tick := time.NewTicker(400 * time.Millisecond)
	defer tick.Stop()
	for n := 0; time.Since(began) < limit; n++ {
		lacks := r.missing()
		idle := g.idle() > cellIdleLimit && !slices.ContainsFunc(lacks, g.had)
		if len(g.missing()) == 0 && (idle || n > len(all) && len(lacks) == 0) {
			break
		}
		all[n%len(all)](t, c)
		select {
		case <-tick.C:
		case <-t.Context().Done():
			return
		}
	}
	g.end()
	pgtest.Await(t, "the last fault", func() (bool, error) { return g.nonePending(), nil })
	t.Logf("%d processes in %v; left: %v", c.count(), time.Since(began).Round(time.Second),
		append(g.missing(), fmt.Sprint(r.missing())))
}

func cellByWatermark(t *testing.T) *cell {
	t.Helper()
	c := newCell(t)
	c.dedup = byWatermark
	return c
}

// checkRows checks that by watermark only released and discarded events have a row.
func (c *cell) checkRows(t *testing.T) {
	t.Helper()
	const unasked = `select count(*) from paid p where (exists (select from inbox_message m where m.message_id = p.id)
			or exists (select from inbox_message_any a where a.message_id = p.id))
		and not exists (select from inbox_audit a where a.message_id = p.id or a.message_id is null
			and a.key = convert_to(p.account, 'UTF8'))`
	if n := pgtest.One[int](t, c.db, unasked); n > 0 {
		t.Errorf("%d events have a row, but were not released or discarded", n)
	}
	t.Logf("%d of %d events have none", pgtest.One[int](t, c.db,
		`select count(*) from paid p where not exists (select from inbox_message m where m.message_id = p.id)`),
		pgtest.One[int](t, c.db, `select count(*) from paid`))
}

// cellFromWAL has a relay that reads the WAL. A silent partition, refused events, pauses and fences move lanes to the
// table and back, again and again.
func cellFromWAL(t *testing.T) *cell {
	t.Helper()
	c := newCell(t)
	c.feed = fromWAL
	if _, err := operator.SetUpWAL(t.Context(), c.db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pgtest.Await(t, "the end of the slot", func() (bool, error) {
			_, err := operator.DropWAL(context.Background(), c.db.Pool, "")
			return err == nil, nil
		})
	})
	return c
}
