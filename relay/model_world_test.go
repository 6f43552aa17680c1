//go:build !race

package relay

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/relay/internal/cycle"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/floors"
	"github.com/effectonce/effectonce/relay/internal/keeper"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/pg"
	"github.com/effectonce/effectonce/relay/internal/prober"
	"github.com/effectonce/effectonce/relay/internal/reviver"
	"github.com/effectonce/effectonce/relay/internal/signal"
	"github.com/effectonce/effectonce/relay/internal/sql"
	"github.com/effectonce/effectonce/relay/internal/start"
)

// modelWorld is a bounded world.
type modelWorld struct {
	name string
	// keys has a letter for each event, in causal order per letter: A and B are keys of lane 0, C is a key of lane 1, U
	// is a key of lane 0 and topic u, and - is no key.
	keys      string
	scheduled string // a letter per event; y: it is appended for later
	apart     bool   // B goes to partition 1, not 0
	relays    int    // default 1
	max       int    // events per lane and claim; default 2
	park      FailurePolicy
	preload   int  // the number of events that are committed before the first step
	async     bool // producers do not wait for the disk
	floors    bool
	excepts   bool  // open transactions are excepted
	far       int64 // how far claims read above a rising floor; 0: farther than all ids
	inside    bool  // producers and pauses come between the statements of a claim
	hidden    bool  // connections survive a crash: a pooler hides it
	lagging   bool  // a standby gets commits later, and COMMIT does not wait for it
	standby   bool  // a crash keeps only commits that waited for the standby
	rescans   bool
	// lateSettles: of a relay's transactions, only settles may come late.
	lateSettles bool
	allBeats    bool // also heartbeats without effect
	budget      modelBudget
	rules       modelRules
	limit       int // states

	ghosts ghostTable
	ran    map[string]bool // statements that were run
	schema *sql.Schema
	lanes  int // number of lanes that its keys use
	log    *slog.Logger
	bads   []string
}

// modelKey is the meaning of a letter. The lanes are those that Postgres computes for the keys, and for the message ids
// of events without a key.
type modelKey struct {
	lane  int16
	key   string
	topic string
	mark  int
}

var modelKeyOf = map[byte]modelKey{
	'A': {0, "bd", "t", 0}, 'B': {0, "cn", "t", 1}, 'C': {1, "br", "t", 2}, 'U': {0, "bd", "u", 3},
	'-': {0, "", "t", -1},
}

var modelTopics = [2]string{"t", "u"}

// modelIDs are message ids of lane 0.
var modelIDs = [modelEvents]uuid.UUID{
	uuid.MustParse("00000000-0000-7000-8000-000000000002"), uuid.MustParse("00000000-0000-7000-8000-000000000064"),
	uuid.MustParse("00000000-0000-7000-8000-0000000000a7"), uuid.MustParse("00000000-0000-7000-8000-0000000000aa"),
}

func (w *modelWorld) of(ev uint8) modelKey { return modelKeyOf[w.keys[ev]] }

func (w *modelWorld) isScheduled(ev uint8) bool {
	return int(ev) < len(w.scheduled) && w.scheduled[ev] == 'y'
}

func (w *modelWorld) partition(ev uint8) int32 {
	if w.apart && w.keys[ev] == 'B' {
		return 1
	}
	return 0
}

// cause returns the event before this one on its key.
func (w *modelWorld) cause(ev uint8) (uint8, bool) {
	for i := int(ev) - 1; i >= 0; i-- {
		if w.keys[i] == w.keys[ev] && w.keys[ev] != '-' {
			return uint8(i), true
		}
	}
	return 0, false
}

func eventOf(id uuid.UUID) uint8 {
	for ev := range uint8(modelEvents) {
		if modelIDs[ev] == id {
			return ev
		}
	}
	panic("no such event")
}

func placeBit(at delivery.Place) uint8 {
	for i, topic := range modelTopics {
		if topic == at.Topic {
			return 1 << (i*3 + int(at.Partition) + 1)
		}
	}
	panic("no such topic")
}

func placeIndex(at delivery.Place) int {
	for i := range modelPlaces {
		if 1<<i == int(placeBit(at)) {
			return i
		}
	}
	return -1
}

func placesOf(bits uint8) (places []delivery.Place) {
	for i := range modelPlaces {
		if bits>>i&1 == 1 {
			places = append(places, delivery.At(modelTopics[i/3], int32(i%3)-1))
		}
	}
	return places
}

func topicsOf(bits uint8) []string {
	topics := []string{}
	for i, topic := range modelTopics {
		if bits>>i&1 == 1 {
			topics = append(topics, topic)
		}
	}
	return topics
}

func topicBits(topics []string) (bits uint8) {
	for i, topic := range modelTopics {
		for _, t := range topics {
			if t == topic {
				bits |= 1 << i
			}
		}
	}
	return bits
}

func ownerID(owner uint8) uuid.UUID { return uuid.UUID{15: owner} }

func numbering(server uint8) string {
	if server == 0 {
		return ""
	}
	return string([]byte{'n', '0' + server})
}

func xidsOf(evs uint8) (xids []string) {
	for ev := range uint8(modelEvents) {
		if evs>>ev&1 == 1 {
			xids = append(xids, string('0'+rune(ev)))
		}
	}
	return xids
}

func sinceOf(r *modelRelay) map[string]int64 {
	since := map[string]int64{}
	for _, xid := range xidsOf(r.except) {
		since[xid] = int64(r.since[xid[0]-'0'])
	}
	return since
}

func xidBits(xids []string) (evs uint8) {
	for _, xid := range xids {
		evs |= 1 << (xid[0] - '0')
	}
	return evs
}

func numberOf(ids string) (server uint8) {
	if ids == "" {
		return 0
	}
	return ids[1] - '0'
}

func (w *modelWorld) prepare() {
	w.relays = max(w.relays, 1)
	if w.max == 0 {
		w.max = 2
	}
	w.schema, _ = sql.For("")
	w.log = slog.New(slog.DiscardHandler)
	w.lanes, w.ran = 1, map[string]bool{}
	if w.usesLane(1) {
		w.lanes = 2
	}
	if w.limit == 0 {
		w.limit = 150_000
	}
}

// start returns the first state: the first relay owns all lanes.
func (w *modelWorld) start() modelState {
	var s modelState
	s.budget, s.server = w.budget, 1
	s.db.incarnation, s.db.system = 0, 1
	for i := range w.relays {
		s.relays[i].owner, s.relays[i].epoch = uint8(i+1), 1
		s.db.members[i+1] = memberAlive
	}
	for lane := range w.lanes {
		s.db.lanes[lane].owner, s.db.lanes[lane].fence = 1, 1
		s.relays[0].lanes[lane] = modelOwned{has: true, fence: 1, fresh: true, ready: true, due: true, stale: true}
	}
	m := &modelRun{world: w, s: s}
	for ev := range uint8(w.preload) {
		m.draw(ev)
		m.commitTx(ev)
	}
	m.flush()
	return m.s
}

func (w *modelWorld) usesLane(lane int16) bool {
	for ev := range uint8(len(w.keys)) {
		if w.of(ev).lane == lane {
			return true
		}
	}
	return false
}

// modelRun is one step: a copy of the state, and the faults that the step meets.
type modelRun struct {
	world *modelWorld
	s     modelState

	sends  int // transactions so far
	failAt int // the transaction that meets fate; 0: none
	fate   int
	// between is called before each statement of a transaction.
	between    func(statement int)
	forbidden  uint8 // topics that the claim must not send
	snapped    bool  // the bug oneStatement: the claim reads the state from before its wait
	staleProbe bool  // a probe that read before the claim reports after it
	reads      int   // the relay's count of reads of its lanes, as the current claim knows it
	broker     func(events []event.Event) []error
}

func (m *modelRun) fail(what string) {
	if m.s.bad != 0 {
		return
	}
	for i, known := range m.world.bads {
		if known == what {
			m.s.bad = uint8(i + 1)
			return
		}
	}
	m.world.bads = append(m.world.bads, what)
	m.s.bad = uint8(len(m.world.bads))
}

// flush makes all commits durable.
func (m *modelRun) flush() {
	if m.keepsDisk() {
		m.s.disk, m.s.diskTx = m.s.db, m.s.tx
	}
}

func (m *modelRun) keepsDisk() bool {
	return m.world.budget.dbCrash+m.world.budget.failover+m.world.budget.restore > 0
}

// Publish implements Publisher.
func (m *modelRun) Publish(_ context.Context, events []event.Event) []error { return m.broker(events) }

// Route implements Router.
func (m *modelRun) Route(_ context.Context, topic string) (func(e *event.Event) int32, error) {
	return func(e *event.Event) int32 { return m.world.partition(eventOf(e.ID)) }, nil
}

// session returns a session of a relay, with a working or a lost connection.
func (m *modelRun) session(r *engine, i int, kind uint8) *pg.Session {
	conn := &modelConn{m: m}
	s := &pg.Session{Name: "model", Timeout: time.Hour}
	s.Dial = func(context.Context, string, func(*pgconn.Notice)) (pg.Conn, error) { return conn, nil }
	_ = s.Open(context.Background())
	conn.closed = m.s.relays[i].cut>>kind&1 == 1
	s.Dial = func(context.Context, string, func(*pgconn.Notice)) (pg.Conn, error) { return &modelConn{m: m}, nil }
	s.Reopened = func() { r.Lanes.Reset() }
	return s
}

// with restores relay i, runs do with one of its sessions, and stores its memory again.
func (m *modelRun) with(i int, kind uint8, do func(r *engine, s *pg.Session)) {
	r := m.load(i)
	s := m.session(r, i, kind)
	do(r, s)
	m.s.relays[i].cut &^= 1 << kind
	s.Reopened = func() { m.s.relays[i].cut |= 1 << kind } // as it will notice
	_ = s.Open(context.Background())
	m.store(i, r)
}

var (
	modelLater  = time.Now().Add(1000 * time.Hour)
	modelLong   = time.Now().Add(-1000 * time.Hour)
	modelConfig = Config{
		Lease: time.Hour, Pumps: 1, ClaimBytes: 1 << 30, HoldAfter: -1, FloorEvery: time.Nanosecond, RescanEvery: -1,
	}
)

func (m *modelRun) load(i int) *engine {
	w, from := m.world, &m.s.relays[i]
	m.reads = 1
	cfg := modelConfig
	r := &engine{Start: &start.Start{
		To: start.Publisher{Publish: m.Publish, Route: m.Route}, Schema: w.schema, Log: w.log, Lease: cfg.Lease,
		Postgres: &outage.Monitor{Log: w.log}, Kafka: &outage.Monitor{Log: w.log}, Signals: signal.New(0),
		Owner: ownerID(from.owner), Lanes: (&laneTable{
			owned: make(map[int16]*laneState, modelLanes), reads: 1, epoch: epochOf(from.epoch),
			ids: numbering(from.ids), decided: int64(from.known), reached: int64(from.reached),
			except: xidsOf(from.except), since: sinceOf(from), expected: w.far > 0, limit: int64(from.limit),
			far: cmp.Or(w.far, 1<<18),
		}).table(),
		Health: delivery.NewHealth(-1, time.Now(), newPauses),
	}, cfg: cfg}
	r.cycle = &cycle.Cycle{Start: r.Start, MostBytes: cfg.ClaimBytes, ParkEvent: w.park == ParkEvent}
	r.keeper = &keeper.Keeper{Start: r.Start, Part: &r.wal, ResignFor: time.Minute}
	r.prober = &prober.Prober{Start: r.Start, Cycle: r.cycle, Keeper: r.keeper, Part: &r.wal}
	r.reviver = &reviver.Reviver{Start: r.Start, Cycle: r.cycle}
	r.floors = &floors.Finder{
		Start: r.Start, Every: cfg.FloorEvery, RescanEvery: cfg.RescanEvery, ExceptFrom: floors.ExceptFrom,
	}
	if w.excepts {
		r.floors.ExceptFrom = 0
	}
	if from.limit == math.MaxUint8 {
		inside(r.Lanes).limit = math.MaxInt64
	}
	for lane := range from.lanes {
		l := &from.lanes[lane]
		if !l.has {
			continue
		}
		to := &laneState{
			fence: int64(l.fence), deadline: modelLater, next: int64(l.next), end: int64(l.end), floor: int64(l.floor),
			reach: int64(l.reach), settled: int64(l.settled), read: 1, fresh: l.fresh, due: l.due, ready: l.ready,
			woken: l.woken, busy: l.busy, doubt: l.doubt, leaving: l.leaving, parked: l.parked, releasing: l.releasing,
			groups: delivery.Groups{}.With(placesOf(l.groups)), turn: int(l.turn),
		}
		if l.stale {
			to.read = 0
		}
		inside(r.Lanes).owned[int16(lane)] = to
	}
	r.cycle.MostEvents = w.max * max(len(inside(r.Lanes).owned), 1)
	for _, at := range placesOf(from.closed) {
		r.Health.Close(at, modelLong)
	}
	r.Health.Pause(topicsOf(from.paused))
	return r
}

func (m *modelRun) store(i int, r *engine) {
	to := &m.s.relays[i]
	to.lanes = [modelLanes]modelOwned{}
	for lane, l := range inside(r.Lanes).owned {
		if int(lane) >= modelLanes {
			continue
		}
		o := modelOwned{
			has: true, fence: uint8(l.fence), next: int32(l.next), end: int32(l.end), settled: int32(l.settled),
			floor: uint8(l.floor), reach: uint8(l.reach), stale: l.read != inside(r.Lanes).reads, fresh: l.fresh,
			due: l.due, ready: l.ready, woken: l.woken, busy: l.busy, doubt: l.doubt, leaving: l.leaving,
			parked: l.parked, releasing: l.releasing, turn: uint8(l.turn % 6),
		}
		o.groups |= bitsOf(l.groups)
		to.lanes[lane] = o
	}
	to.epoch = numberOfEpoch(inside(r.Lanes).epoch)
	to.ids, to.known, to.closed, to.paused = numberOf(inside(r.Lanes).ids), uint8(inside(r.Lanes).decided), 0, 0
	to.reached, to.except, to.limit = uint8(inside(r.Lanes).reached), xidBits(inside(r.Lanes).except), 0
	to.since = [modelEvents]uint8{}
	for xid, at := range inside(r.Lanes).since {
		to.since[xid[0]-'0'] = uint8(at)
	}
	if w := m.world; w.far > 0 {
		to.limit = uint8(min(inside(r.Lanes).limit, math.MaxUint8))
	}
	for lane := range to.claim.lanes {
		l := &to.claim.lanes[lane]
		if inside(r.Lanes).falls > 0 {
			l.floorAfter, l.sure = 0, 0
		}
		l.stale = l.stale || l.has && inside(r.Lanes).reads != m.reads
	}
	for i := range modelPlaces {
		if at := placesOf(1 << i)[0]; r.Health.Age(at, modelLater) > 0 {
			to.closed |= 1 << i
		}
	}
	_, paused := r.Health.Pause(nil)
	to.paused = topicBits(paused)
}

// loadClaim restores an unfinished claim and its delivery.
func (m *modelRun) loadClaim(i int, r *engine) (*cycle.Claim, *delivery.Delivery) {
	from := &m.s.relays[i].claim
	c := &cycle.Claim{Epoch: epochName(from.epoch), Paused: topicsOf(from.paused)}
	for lane := range from.lanes {
		f := &from.lanes[lane]
		if !f.has {
			continue
		}
		l := cycle.Part{Grant: lanes.Grant{
			Lane: int16(lane), Fence: int64(f.fence), Reads: inside(r.Lanes).reads,
			Groups: delivery.Groups{}.With(placesOf(f.groups)), Decided: int64(f.sure),
		}}
		l.Work, l.First, l.Full, l.FloorAfter = cycle.Work(f.work), int64(f.first), f.full, int64(f.floorAfter)
		if f.stale {
			l.Reads--
		}
		if f.behind {
			l.Behind = 1
		}
		c.Parts = append(c.Parts, l)
	}
	for k := range from.n {
		it := &from.items[k]
		e := m.event(it.ev)
		e.Position = event.Position{
			Lane: m.world.of(it.ev).lane, Epoch: c.Epoch, Seq: int64(it.seq), First: it.first,
			MaybePublished: it.maybe,
		}
		one := delivery.Item{
			ID: int64(it.id), From: delivery.From(it.from), Fate: delivery.Fate(it.fate), MaybePublished: it.sent,
			Alone: it.alone, Partition: int32(it.partition), Behind: it.behind,
		}
		if it.refused {
			one.Cause = &delivery.Cause{Code: "R", Error: "refused"}
		}
		c.Events, c.Items = append(c.Events, e), append(c.Items, one)
	}
	return c, delivery.New(c.Events, c.Items)
}

func (m *modelRun) storeClaim(i int, r *engine, c *cycle.Claim) {
	to := &m.s.relays[i].claim
	*to = modelClaim{active: true, epoch: epochNumber(c.Epoch), paused: topicBits(c.Paused), n: uint8(len(c.Events))}
	for k := range c.Parts {
		l := &c.Parts[k]
		t := &to.lanes[l.Lane]
		t.has, t.full, t.behind, t.stale, t.fence = true, l.Full, l.Behind > 0, l.Reads != inside(r.Lanes).reads,
			uint8(l.Fence)
		t.work, t.first, t.floorAfter = uint8(l.Work), int32(l.First), uint8(l.FloorAfter)
		t.groups |= bitsOf(l.Groups)
		t.sure = min(t.floorAfter, uint8(l.Decided))
	}
	inside(r.Lanes).falls, m.reads = 0, inside(r.Lanes).reads // the claim knows of earlier ones
	for k := range c.Events {
		it, p := &c.Items[k], &c.Events[k].Position
		to.items[k] = modelItem{
			ev: eventOf(c.Events[k].ID), id: uint8(it.ID), from: uint8(it.From), fate: uint8(it.Fate),
			seq: int32(p.Seq), partition: int8(it.Partition), sent: it.MaybePublished, alone: it.Alone,
			behind: it.Behind, first: p.First, maybe: p.MaybePublished, refused: it.Cause != nil,
		}
	}
}

func epochName(incarnation uint8) string { return string([]byte{'m', '.', '0' + incarnation}) }

func epochNumber(epoch string) (n uint8) { return epoch[2] - '0' }

// epochOf and numberOfEpoch translate an epoch that may be unknown.
func epochOf(n uint8) string {
	if n == 0 {
		return ""
	}
	return epochName(n - 1)
}

func numberOfEpoch(epoch string) uint8 {
	if epoch == "" {
		return 0
	}
	return 1 + epochNumber(epoch)
}

func (m *modelRun) event(ev uint8) event.Event {
	k := m.world.of(ev)
	return event.Event{ID: modelIDs[ev], Topic: k.topic, Key: k.key, Type: "T", ContentType: "c"}
}

var _ pg.Conn = (*modelConn)(nil)

var _ pgx.Rows = (*modelRows)(nil)

func bitsOf(g delivery.Groups) (bits uint8) {
	for topic, partitions := range g {
		for _, p := range partitions {
			bits |= placeBit(delivery.At(topic, p))
		}
	}
	return bits
}
