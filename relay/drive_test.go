package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/relay/internal/pg"
)

// Driver makes a relay's steps one by one, for tests of interleavings: nothing happens in between.
type Driver struct {
	r     *Relay
	s     *session
	probe *session
	floor floorFinder

	pid, probePID uint32 // of the sessions' backends
}

func (d *Driver) session(name string, pid *uint32) *session {
	s := d.r.session(name)
	dial := s.Dial
	s.Dial = func(ctx context.Context, name string, warned func()) (pg.Conn, error) {
		conn, err := dial(ctx, name, warned)
		if err == nil {
			*pid = conn.(*pgx.Conn).PgConn().PID()
		}
		return conn, err
	}
	return s
}

// Drive starts a relay that does only what it is told.
func Drive(ctx context.Context, r *Relay) (*Driver, error) {
	if err := r.start(lanes.Pumps); err != nil {
		return nil, err
	}
	d := &Driver{r: r}
	d.s, d.probe = d.session("driven", &d.pid), d.session("driven prober", &d.probePID)
	return d, r.beat(ctx, d.s)
}

// Close leaves the lanes to others.
func (d *Driver) Close() {
	_ = d.r.resign(context.Background(), d.s)
	d.s.Close()
	d.probe.Close()
}

// Beat is one heartbeat.
func (d *Driver) Beat(ctx context.Context) error { return d.r.beat(ctx, d.s) }

// BeatBeside is one heartbeat while a step is under way.
func (d *Driver) BeatBeside(ctx context.Context) error { return d.r.beat(ctx, d.probe) }

// Step claims, publishes and settles once, in every lane that it may claim.
func (d *Driver) Step(ctx context.Context) (int, error) {
	d.r.lanes.Found(d.r.lanes.All(), nil, nil)
	grants := d.r.lanes.Take(0, 1, time.Now())
	if len(grants) == 0 {
		return 0, nil
	}
	return d.r.step(ctx, d.s, grants, nil)
}

// Work is what the pumps do: it claims, publishes and settles in lanes that are ready, until none is.
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

// StepAfter is Step, but do happens between the pump's taking the lanes and its claim. It returns the lanes that are
// ready when the pump has given them back.
func (d *Driver) StepAfter(ctx context.Context, do func()) (ready []int16, err error) {
	d.r.lanes.Found(d.r.lanes.All(), nil, nil)
	grants := d.r.lanes.Take(0, 1, time.Now())
	do()
	_, err = d.r.step(ctx, d.s, grants, nil)
	return inside(d.r.lanes).list((*laneState).isReady), err
}

// Woken is what the prober does before it looks, when Wake was called.
func (d *Driver) Woken() { d.r.lanes.Woken() }

// Told reports whether the prober was told to look at once, and takes that.
func (d *Driver) Told() bool {
	select {
	case <-d.r.woken:
		return true
	default:
		return false
	}
}

// Expire puts the local deadline of every lane into the past, as a heartbeat that is late does.
func (d *Driver) Expire() {
	for _, l := range inside(d.r.lanes).owned {
		l.deadline = time.Now().Add(-time.Second)
	}
}

// Kicked reports whether the pumps were told that there is work, and takes the kick.
func (d *Driver) Kicked() bool {
	select {
	case <-d.r.kicks[0]:
		return true
	default:
		return false
	}
}

// FloorStep makes one step toward higher floors.
func (d *Driver) FloorStep(ctx context.Context) error { return d.r.floorStep(ctx, d.probe, &d.floor) }

// InSlices makes claims go only so far above floors that are on their way, which rise by slices of so many ids.
func (d *Driver) InSlices(far, slice int64) {
	inside(d.r.lanes).far, d.floor.slice, d.floor.deep = far, sliceSize(slice), sliceSize(slice)
	d.r.lanes.ExpectFloors()
}

// Look is one probe. It returns the lanes that it found something in.
func (d *Driver) Look(ctx context.Context) ([]int16, error) {
	for _, l := range inside(d.r.lanes).owned {
		l.ready = false
	}
	ask, floors, ids := d.r.lanes.ToProbe()
	_, err := d.r.look(ctx, d.probe, ask, floors, ids)
	return inside(d.r.lanes).list((*laneState).isReady), err
}

// Floors are the lanes' floors, and the numbering that they are in.
func (d *Driver) Floors() (lanes []int16, floors []int64, ids string) {
	return d.r.lanes.Reaches()
}

// Fences are the lanes' fences, in the order of lanes.
func (d *Driver) Fences(lanes []int16) (fences []int64) {
	for _, lane := range lanes {
		fences = append(fences, inside(d.r.lanes).owned[lane].fence)
	}
	return fences
}

// ProberPID is the backend of the prober's connection.
func (d *Driver) ProberPID() int32 { return int32(d.probePID) }

// PID is the backend of the connection that claims go over.
func (d *Driver) PID() uint32 { return d.pid }

// Relay is what is driven.
func (d *Driver) Relay() *Relay { return d.r }

// Rescan is one look below the floors.
func (d *Driver) Rescan(ctx context.Context) error { return d.r.rescan(ctx, d.probe, &floorFinder{}) }

// Renamed gives those who are waited for other names than they have now, as a crash of the server does with prepared
// transactions. It returns how many they are.
func (d *Driver) Renamed() int {
	n := len(d.floor.waitsFor)
	d.floor.waitsFor = pg.Holders{}
	for i := range n {
		d.floor.waitsFor[fmt.Sprintf("before the crash %d", i)] = pg.Holder{}
	}
	return n
}

// RescanSlice is a part of one.
func (d *Driver) RescanSlice(ctx context.Context) error { return d.r.rescan(ctx, d.probe, &d.floor) }

// Behind is how many lanes have floors that are on their way.
func (d *Driver) Behind() int { return d.r.lanes.Behind() }

// Reconnect replaces the connection that claims go over, as if another statement had found the old one dead.
func (d *Driver) Reconnect(ctx context.Context) error {
	d.s.Close()
	return d.s.Open(ctx)
}

// Disconnect ends the connection that claims go over: the next claim opens one.
func (d *Driver) Disconnect() { d.s.Close() }

// Unpause is the late news of somebody who read what is paused before a topic was.
func Unpause(r *Relay) { r.setPaused(nil) }

// Try is one try of a closed topic.
func (d *Driver) Try(ctx context.Context, topic string) error {
	return d.r.tryClosed(ctx, d.probe, []delivery.Place{delivery.Whole(topic)})
}

// Reach looks for floors as if everything up to an id were decided.
func (d *Driver) Reach(ctx context.Context, highest int64) error {
	d.r.reach(&d.floor, highest)
	return d.r.raiseFloors(ctx, d.probe, &d.floor)
}

// Slice is how many ids the next look for floors reads.
func (d *Driver) Slice() int64 { return int64(d.floor.slice) }
