package proof

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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
	name   string
	cells  int
	roles  []role // have faults
	about  string // at messages with matching names; at others only if the first mode had none there
	make   func(t *testing.T) *cell
	also   []disturbance
	verify func(c *cell, t *testing.T)
}

var modes = []mode{
	{"by id", 2, []role{producer, relaying, worker, person}, ".", newCell, []disturbance{otherTimeline}, (*cell).check},
	{"by watermark", 1, []role{worker, person}, "inbox", cellByWatermark, nil, (*cell).checkRows},
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
	runModes(t, true, func(string) []deed { return []deed{before, after} })
}

// TestFaults ends the connection there instead. A COMMIT may also take effect at the same time as its sender's next
// step, or long after it (P3.7, P9.3).
func TestFaults(t *testing.T) {
	requireProof(t)
	runModes(t, false, func(name string) []deed {
		if strings.HasPrefix(name, "COMMIT") {
			return []deed{before, after, soon, late}
		}
		return []deed{before, after}
	})
}

// TestFewKills is one cell with a few kills at the critical messages: at the effect, and between the ack and the
// settle. It is short enough for internal/verify/mutations, some of whose bugs it must find by the check of
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
	c.begin(t)
	for _, d := range []struct {
		role role
		mark mark
	}{
		{worker, mark{before, "proof: effect"}},
		{relaying, mark{after, "Kafka Produce"}},
		{worker, mark{after, commitOf("inbox: pass")}},
		{worker, mark{before, commitOf("inbox: pass")}},
		{relaying, mark{after, commitOf("relay: settle archived")}},
	} {
		g := newRegister(func(name string) []deed {
			if name == d.mark.name {
				return []deed{d.mark.deed}
			}
			return nil
		})
		c.arm(g, d.role)
		pgtest.Await(t, "a death "+d.mark.String(), func() (bool, error) { return g.times(d.mark) > 0, nil })
	}
	c.finish(t)
}

// limit bounds the disturbances of a cell. Most need half of it; a busy machine needs more.
const limit = 10 * time.Minute

// longIdle without a fault or new message ends a cell.
const longIdle = time.Minute

// run is the faults of a test, in all modes.
type run struct {
	deeds      func(name string) []deed
	statements []string
	registers  []*register
}

func runModes(t *testing.T, kills bool, deeds func(name string) []deed) {
	t.Helper()
	r := &run{deeds: deeds, statements: statements(t)}
	for _, m := range modes {
		about := regexp.MustCompile(m.about)
		r.registers = append(r.registers, newRegister(func(name string) []deed {
			all := deeds(name)
			if about.MatchString(name) {
				return all
			}
			return slices.DeleteFunc(slices.Clone(all),
				func(d deed) bool { return r.registers[0].times(mark{d, name}) > 0 })
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
					c := m.make(t)
					c.kills = kills
					c.arm(r.registers[i], m.roles...)
					c.begin(t)
					c.disturb(t, r, r.registers[i], slices.Concat(usual, m.also))
					c.finish(t)
					m.verify(c, t)
				})
			}
		}
	})
	for i, g := range r.registers {
		t.Logf("%s: %s", modes[i].name, g.sum())
		for _, m := range g.left() {
			t.Errorf("%s: no fault %s", modes[i].name, m)
		}
	}
	for _, m := range r.left() {
		t.Errorf("no fault %s: let a process send it, or list it in excused with a reason", m)
	}
}

// left lists the missing faults at the statements.
func (r *run) left() (all []mark) {
	for _, name := range r.statements {
		for _, d := range r.deeds(name) {
			m := mark{d, name}
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
		if len(g.left()) == 0 && (g.idle() > longIdle || n > len(all) && len(r.left()) == 0) {
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
	pgtest.Await(t, "the last fault", func() (bool, error) { return g.quiet(), nil })
	t.Logf("%d processes in %v; left: %v", c.count(), time.Since(began).Round(time.Second),
		append(g.left(), fmt.Sprint(r.left())))
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
	c.source = fromWAL
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
