package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/relay/internal/pg"
)

// Driver runs a relay's steps one at a time, for tests of interleavings: nothing runs between two calls.
type Driver struct {
	r     *Relay
	s     *session
	probe *session
	floor floorFinder

	pid, probePID uint32 // of the backends
}

func (d *Driver) session(name string, pid *uint32) *session {
	s := d.r.session(name)
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

// Drive starts a relay that runs only the steps that the Driver is called for.
func Drive(ctx context.Context, r *Relay) (*Driver, error) {
	if err := r.start(lanes.Pumps); err != nil {
		return nil, err
	}
	d := &Driver{r: r}
	d.s, d.probe = d.session("driven", &d.pid), d.session("driven prober", &d.probePID)
	return d, r.beat(ctx, d.s)
}

// Close releases the lanes.
func (d *Driver) Close() {
	_ = d.r.resign(context.Background(), d.s)
	d.s.Close()
	d.probe.Close()
}

// Beat runs one heartbeat.
func (d *Driver) Beat(ctx context.Context) error { return d.r.beat(ctx, d.s) }

// BeatBeside runs one heartbeat on the prober's session, while a step uses the other.
func (d *Driver) BeatBeside(ctx context.Context) error { return d.r.beat(ctx, d.probe) }

// Step claims, publishes and settles once, in all lanes that may be claimed.
func (d *Driver) Step(ctx context.Context) (int, error) {
	d.r.lanes.Found(d.r.lanes.All(), nil, nil)
	grants := d.r.lanes.Take(0, 1, time.Now())
	if len(grants) == 0 {
		return 0, nil
	}
	return d.r.step(ctx, d.s, grants, nil)
}

// Work runs the pumps' loop: it claims, publishes and settles until no lane is ready.
func (d *Driver) Work(ctx context.Context) error {
	for {
		grants := d.r.lanes.Take(0, 1, time.Now())
		if len(grants) == 0 {
			return nil
		}
		if _, err := d.r.step(ctx, d.s, grants, nil); err != nil {
			return err
		}
	}
}

// StepAfter is Step, with a call of do between taking the lanes and the claim. It returns the lanes that are ready
// after the pump has given them back.
func (d *Driver) StepAfter(ctx context.Context, do func()) (ready []int16, err error) {
	d.r.lanes.Found(d.r.lanes.All(), nil, nil)
	grants := d.r.lanes.Take(0, 1, time.Now())
	do()
	_, err = d.r.step(ctx, d.s, grants, nil)
	return inside(d.r.lanes).list((*laneState).isReady), err
}

// Woken does what the prober does after Wake, before it probes.
func (d *Driver) Woken() { d.r.lanes.Woken() }

// Told reports whether the relay told its prober to probe at once, and consumes the request.
func (d *Driver) Told() bool {
	select {
	case <-d.r.probeAgain:
		return true
	default:
		return false
	}
}

// SleepEnds reports whether a sleep that begins now would end at once.
func (d *Driver) SleepEnds() bool { return len(d.r.woken) > 0 }

// Expire moves the local deadline of every lane into the past, as a late heartbeat does.
func (d *Driver) Expire() {
	for _, l := range inside(d.r.lanes).owned {
		l.deadline = time.Now().Add(-time.Second)
	}
}

// Kicked reports whether the pumps were told of work, and consumes the kick.
func (d *Driver) Kicked() bool {
	select {
	case <-d.r.kicks[0]:
		return true
	default:
		return false
	}
}

// FloorStep runs one step of raising floors.
func (d *Driver) FloorStep(ctx context.Context) error { return d.r.floorStep(ctx, d.probe, &d.floor) }

// InSlices limits claims to far ids above floors that are still rising, and makes these rise by slice ids at a time.
func (d *Driver) InSlices(far, slice int64) {
	inside(d.r.lanes).far, d.floor.slice, d.floor.deep = far, sliceSize(slice), sliceSize(slice)
	d.r.lanes.ExpectFloors()
}

// Probe runs one probe. It returns the lanes in which it found events.
func (d *Driver) Probe(ctx context.Context) ([]int16, error) {
	for _, l := range inside(d.r.lanes).owned {
		l.ready = false
	}
	ask, floors, ids := d.r.lanes.ToProbe()
	_, err := d.r.probeOnce(ctx, d.probe, ask, floors, ids)
	return inside(d.r.lanes).list((*laneState).isReady), err
}

// Floors returns the floors of the lanes, and the numbering of ids that they are in.
func (d *Driver) Floors() (lanes []int16, floors []int64, ids string) {
	return d.r.lanes.Reaches()
}

// Fences returns the fences of the given lanes, in their order.
func (d *Driver) Fences(lanes []int16) (fences []int64) {
	for _, lane := range lanes {
		fences = append(fences, inside(d.r.lanes).owned[lane].fence)
	}
	return fences
}

// ProberPID returns the process id of the prober's backend.
func (d *Driver) ProberPID() int32 { return int32(d.probePID) }

// PID returns the process id of the backend that runs claims.
func (d *Driver) PID() uint32 { return d.pid }

// Relay returns the driven relay.
func (d *Driver) Relay() *Relay { return d.r }

// Rescan runs one complete rescan.
func (d *Driver) Rescan(ctx context.Context) error { return d.r.rescan(ctx, d.probe, &floorFinder{}) }

// Renamed renames the transactions that floors wait for, as a server crash does with prepared ones. It returns their
// number.
func (d *Driver) Renamed() int {
	n := len(d.floor.waitsFor)
	d.floor.waitsFor = pg.Holders{}
	for i := range n {
		d.floor.waitsFor[fmt.Sprintf("before the crash %d", i)] = pg.Holder{}
	}
	return n
}

// RescanSlice runs one slice of a rescan.
func (d *Driver) RescanSlice(ctx context.Context) error { return d.r.rescan(ctx, d.probe, &d.floor) }

// Behind returns the number of lanes whose floors are still rising.
func (d *Driver) Behind() int { return d.r.lanes.Behind() }

// Reconnect replaces the connection that runs claims, as if another statement had found the old one dead.
func (d *Driver) Reconnect(ctx context.Context) error {
	d.s.Close()
	return d.s.Open(ctx)
}

// Disconnect closes the connection that runs claims; the next claim opens another.
func (d *Driver) Disconnect() { d.s.Close() }

// Unpause is the late result of a read of outbox_paused_topic from before a pause.
func Unpause(r *Relay) { r.setPaused(nil) }

// Try tries a closed topic once.
func (d *Driver) Try(ctx context.Context, topic string) error {
	return d.r.tryClosed(ctx, d.probe, []delivery.Place{delivery.Whole(topic)})
}

// Reach raises floors as if all ids up to highest were decided.
func (d *Driver) Reach(ctx context.Context, highest int64) error {
	d.r.reach(&d.floor, highest)
	return d.r.raiseFloors(ctx, d.probe, &d.floor)
}

// Slice returns how many ids the next slice has.
func (d *Driver) Slice() int64 { return int64(d.floor.slice) }
