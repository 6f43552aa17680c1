package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/relay/internal/cycle"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/floors"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/pg"
)

// Driver runs a relay's steps one at a time, for tests of interleavings: nothing runs between two calls.
type Driver struct {
	relay *Relay
	r     *engine
	s     *cycle.Session
	sent  []*pgx.QueuedQuery // over the connection that runs claims, since a test has looked
	probe *pg.Session

	pid, probePID uint32 // of the backends
}

func (d *Driver) session(name string, pid *uint32) *pg.Session {
	s := d.r.Session(name)
	dial := s.Dial
	s.Dial = func(ctx context.Context, name string, warned func(*pgconn.Notice)) (pg.Conn, error) {
		conn, err := dial(ctx, name, warned)
		if err == nil {
			*pid = conn.(*pgx.Conn).PgConn().PID()
		}
		return conn, err
	}
	return s
}

// recorded is a connection whose statements are kept.
type recorded struct {
	pg.Conn
	sent *[]*pgx.QueuedQuery
}

// SendBatch implements pg.Conn.
func (c recorded) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	*c.sent = append(*c.sent, b.QueuedQueries...)
	return c.Conn.SendBatch(ctx, b)
}

// Drive starts a relay that runs only the steps that the Driver is called for.
func Drive(ctx context.Context, r *Relay) (*Driver, error) {
	e, err := r.start(lanes.Pumps)
	if err != nil {
		return nil, err
	}
	d := &Driver{relay: r, r: e}
	d.s, d.probe = &cycle.Session{Session: d.session("driven", &d.pid)}, d.session("driven prober", &d.probePID)
	dial := d.s.Dial
	d.s.Dial = func(ctx context.Context, name string, warned func(*pgconn.Notice)) (pg.Conn, error) {
		conn, err := dial(ctx, name, warned)
		return recorded{conn, &d.sent}, err
	}
	return d, e.keeper.Beat(ctx, d.s.Session)
}

// Close releases the lanes.
func (d *Driver) Close() {
	_ = d.r.keeper.Resign(context.Background(), d.s.Session)
	d.s.Close()
	d.probe.Close()
}

// Beat runs one heartbeat.
func (d *Driver) Beat(ctx context.Context) error { return d.r.keeper.Beat(ctx, d.s.Session) }

// BeatBeside runs one heartbeat on the prober's session, while a step uses the other.
func (d *Driver) BeatBeside(ctx context.Context) error { return d.r.keeper.Beat(ctx, d.probe) }

// Step claims, publishes and settles once, in all lanes that may be claimed.
func (d *Driver) Step(ctx context.Context) (int, error) {
	d.r.Lanes.Found(d.r.Lanes.All(), nil, nil)
	grants := d.r.Lanes.Take(0, 1, time.Now())
	if len(grants) == 0 {
		return 0, nil
	}
	return d.r.cycle.Step(ctx, d.s, grants, nil)
}

// Work runs the pumps' loop: it claims, publishes and settles until no lane is ready.
func (d *Driver) Work(ctx context.Context) error {
	for {
		grants := d.r.Lanes.Take(0, 1, time.Now())
		if len(grants) == 0 {
			return nil
		}
		if _, err := d.r.cycle.Step(ctx, d.s, grants, nil); err != nil {
			return err
		}
	}
}

// StepAfter is Step, with a call of do between taking the lanes and the claim. It returns the lanes that are ready
// after the pump has given them back.
func (d *Driver) StepAfter(ctx context.Context, do func()) (ready []int16, err error) {
	d.r.Lanes.Found(d.r.Lanes.All(), nil, nil)
	grants := d.r.Lanes.Take(0, 1, time.Now())
	do()
	_, err = d.r.cycle.Step(ctx, d.s, grants, nil)
	return inside(d.r.Lanes).list((*laneState).isReady), err
}

// Woken does what the prober does after Wake, before it probes.
func (d *Driver) Woken() { d.r.Lanes.Woken() }

// Told reports whether the relay told its prober to probe at once, and consumes the request.
func (d *Driver) Told() bool {
	select {
	case <-d.r.Signals.Probes:
		return true
	default:
		return false
	}
}

// SleepEnds reports whether a sleep that begins now would end at once.
func (d *Driver) SleepEnds() bool { return len(d.r.Signals.Wakes) > 0 }

// Expire moves the local deadline of every lane into the past, as a late heartbeat does.
func (d *Driver) Expire() {
	for _, l := range inside(d.r.Lanes).owned {
		l.deadline = time.Now().Add(-time.Second)
	}
}

// Kicked reports whether the pumps were told of work, and consumes the kick.
func (d *Driver) Kicked() bool {
	select {
	case <-d.r.Signals.Kicks[0]:
		return true
	default:
		return false
	}
}

// FloorStep runs one step of raising floors.
func (d *Driver) FloorStep(ctx context.Context) error { return d.r.floors.Step(ctx, d.probe) }

// InSlices limits claims to far ids above floors that are still rising, and makes these rise by slice ids at a time.
func (d *Driver) InSlices(far, slice int64) {
	inside(d.r.Lanes).far, d.r.floors.Slice, d.r.floors.Deep = far, floors.SliceSize(slice), floors.SliceSize(slice)
	d.r.Lanes.ExpectFloors()
}

// Probe runs one probe. It returns the lanes in which it found events.
func (d *Driver) Probe(ctx context.Context) ([]int16, error) {
	for _, l := range inside(d.r.Lanes).owned {
		l.ready = false
	}
	ask, floors, ids := d.r.Lanes.ToProbe()
	_, err := d.r.prober.Probe(ctx, d.probe, ask, floors, ids)
	return inside(d.r.Lanes).list((*laneState).isReady), err
}

// Floors returns the floors of the lanes, and the numbering of ids that they are in.
func (d *Driver) Floors() (lanes []int16, floors []int64, ids string) {
	return d.r.Lanes.Reaches()
}

// Fences returns the fences of the given lanes, in their order.
func (d *Driver) Fences(lanes []int16) (fences []int64) {
	for _, lane := range lanes {
		fences = append(fences, inside(d.r.Lanes).owned[lane].fence)
	}
	return fences
}

// ProberPID returns the process id of the prober's backend.
func (d *Driver) ProberPID() int32 { return int32(d.probePID) }

// PID returns the process id of the backend that runs claims.
func (d *Driver) PID() uint32 { return d.pid }

// Relay returns the driven relay.
func (d *Driver) Relay() *Relay { return d.relay }

// Rescan runs one complete rescan.
func (d *Driver) Rescan(ctx context.Context) error {
	from := *d.r.floors
	from.State = floors.State{}
	return from.Rescan(ctx, d.probe)
}

// Renamed renames the transactions that floors wait for, as a server crash does with prepared ones. It returns their
// number.
func (d *Driver) Renamed() int {
	n := len(d.r.floors.WaitsFor)
	d.r.floors.WaitsFor = pg.Holders{}
	for i := range n {
		d.r.floors.WaitsFor[fmt.Sprintf("before the crash %d", i)] = pg.Holder{}
	}
	return n
}

// RescanSlice runs one slice of a rescan.
func (d *Driver) RescanSlice(ctx context.Context) error { return d.r.floors.Rescan(ctx, d.probe) }

// Lagging returns the number of lanes whose floors are still rising.
func (d *Driver) Lagging() int { return d.r.Lanes.Lagging() }

// Reconnect replaces the connection that runs claims, as if another statement had found the old one dead.
func (d *Driver) Reconnect(ctx context.Context) error {
	d.s.Close()
	return d.s.Open(ctx)
}

// Disconnect closes the connection that runs claims; the next claim opens another.
func (d *Driver) Disconnect() { d.s.Close() }

// Unpause is the late result of a read of outbox_paused_topic from before a pause.
func Unpause(r *Relay) { r.now.Load().cycle.SetPaused(nil) }

// Try tries a closed topic once.
func (d *Driver) Try(ctx context.Context, topic string) error {
	return d.r.reviver.Try(ctx, d.probe, []delivery.Place{delivery.Whole(topic)})
}

// Reach raises floors as if all ids up to highest were decided.
func (d *Driver) Reach(ctx context.Context, highest int64) error {
	d.r.floors.Reach(highest)
	return d.r.floors.Raise(ctx, d.probe)
}

// Slice returns how many ids the next slice has.
func (d *Driver) Slice() int64 { return int64(d.r.floors.Slice) }
