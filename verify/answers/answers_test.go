package answers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/effectonce/effectonce/internal/testenv/draw"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m, kafkatest.Stop) }

const (
	// gateCells, nightCells and nightLogins are how many cells there is time for. EFFECTONCE_ANSWERS=. plays all.
	gateCells, nightCells, nightLogins = 24, 1200, 150
	// lives play cells beside each other: most of a cell is waiting. With twice as many the servers are late.
	lives = 6
	// lasts is how long an answer stays false where it is not false once.
	lasts = 1500 * time.Millisecond
	// enough is the time within which everything is as it should be after the last false answer.
	enough = 90 * time.Second
)

// step is what makes the clients send a request.
type step int

const (
	steady step = iota // nothing: it is sent all the time
	cut                // the connections end
	again              // the consumer stops, and starts
)

// cell is one way to spoil the answers to one kind of request, once or for a while.
type cell struct {
	kind kind
	step step
	way  way
	last time.Duration
}

func (c cell) String() string {
	often := "once"
	if c.last > 0 {
		often = "for a while"
	}
	return fmt.Sprintf("%v %s, %s", c.kind, c.way.name, often)
}

// certain are the codes that say something certain about a record: an operator has to look at that (P4.park).
var certain = []string{"MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD"}

// loses reports whether the answer says that the log was cut, as the same place of the cut twice does. What is read
// again has its effects already (P9.2).
func (c cell) loses() bool {
	return c.last > 0 && strings.Contains(c.way.name, "DivergingEpoch.EndOffset")
}

// believed reports whether the answer is the group's own offset, beyond the end of the log, twice alike: a person may
// have set it, so the partition halts until a person says what holds (P9.2).
func (c cell) believed() bool {
	return c.last > 0 && c.kind.key == int16(kmsg.OffsetFetch) &&
		strings.Contains(c.way.name, "Partitions[0].Offset is")
}

func (c cell) parks() bool {
	return c.kind.client == "relay" && c.kind.key == 0 && slices.Contains(certain, c.way.code)
}

// scene is where cells are played.
type scene struct {
	cluster
	kinds   map[kind]step
	samples map[kind][]byte
	played  atomic.Int32
	missed  atomic.Int32 // cells for which no such answer was seen
}

// TestAnswers: a relay and a consumer get false answers to each request that they send, one at a time: each error code
// that Kafka defines and some that it does not in each place, other values in each other field, and answers that are
// late, lost, repeated, cut or garbled. Then the answers are true again. Each event is in the log, in the order of its
// key, and has one effect; nobody halts for good, and nothing is parked unless Kafka has refused it for certain.
// The gate draws some cells, and the nightly run more.
func TestAnswers(t *testing.T) {
	t.Parallel()
	codes := errorCodes(t)
	brokers := kafkatest.Brokers(t)
	connect := func() (net.Conn, error) { return net.Dial("tcp", brokers[0]) }
	s := record(t, cluster{brokers: brokers, connect: connect})
	s.play(t, s.cells(t, codes, draw.Size(gateCells, nightCells), func(kind) bool { return true }))
}

// TestAnswersToLogins is TestAnswers for the requests that clients send to log in.
func TestAnswersToLogins(t *testing.T) {
	t.Parallel()
	if !draw.Nightly() {
		t.Skip("a broker of its own, for some more requests: the nightly run has it")
	}
	codes := errorCodes(t)
	kafka := kafkatest.NewSecure(t)
	trusts := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	trusts.RootCAs.AppendCertsFromPEM(kafka.CA.PEM)
	s := record(t, cluster{
		brokers: kafka.Brokers(),
		connect: func() (net.Conn, error) { return tls.Dial("tcp", kafka.SASL, trusts) },
		mech:    plain.Mechanism{Username: kafkatest.SecureUser, Password: kafkatest.SecurePassword},
	})
	s.play(t, s.cells(t, codes, nightLogins, func(k kind) bool {
		return k.key == int16(kmsg.SASLHandshake) || k.key == int16(kmsg.SASLAuthenticate)
	}))
}

func errorCodes(t *testing.T) map[int16]string {
	t.Helper()
	codes := kafkatest.ErrorCodes(t)
	for _, code := range []int16{-2, 9999} {
		if name := codes[code]; name != "" {
			t.Fatalf("%d is %s", code, name)
		}
		codes[code] = "UNDEFINED"
	}
	return codes
}

// record runs both, and notes what they send and when.
func record(t *testing.T, k cluster) *scene {
	t.Helper()
	s := &scene{cluster: k, kinds: map[kind]step{}, samples: map[kind][]byte{}}
	l := s.life(t)
	ctx, cancel := context.WithTimeout(t.Context(), enough)
	defer cancel()
	note := func(at step) {
		for k, sample := range l.proxy.take() {
			if before, ok := s.kinds[k]; !ok || at < before {
				s.kinds[k] = at
			}
			if len(sample) > len(s.samples[k]) {
				s.samples[k] = sample
			}
		}
	}
	var err error
	for range 3 {
		err = errors.Join(err, l.write(ctx), l.whole(ctx, false))
	}
	note(again)
	err = errors.Join(err, l.restart(), l.write(ctx), l.whole(ctx, false))
	note(again)
	l.proxy.cut()
	err = errors.Join(err, l.write(ctx), l.whole(ctx, false))
	note(cut)
	for began := time.Now(); time.Since(began) < 2*time.Second; {
		err = errors.Join(err, l.write(ctx), l.whole(ctx, false))
	}
	note(steady)
	if err := errors.Join(err, l.stop()); err != nil {
		t.Fatal(err)
	}
	note(again)
	for k := range s.kinds {
		if k.client != "relay" && k.client != "consumer" {
			t.Errorf("%q is not one of the clients", k.client)
		}
	}
	return s
}

func (s *scene) life(t *testing.T) *life {
	t.Helper()
	l, err := newLife(t, s.cluster)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// cells draws so many of all cells, or lists those that EFFECTONCE_ANSWERS matches.
func (s *scene) cells(t *testing.T, codes map[int16]string, most int, of func(kind) bool) (drawn []cell) {
	t.Helper()
	source := rand.New(rand.NewPCG(draw.Seed(t), 0)) //nolint:gosec // repeatable
	only := regexp.MustCompile(os.Getenv("EFFECTONCE_ANSWERS"))
	all := 0
	for _, k := range slices.SortedFunc(maps.Keys(s.kinds), func(a, b kind) int {
		return strings.Compare(a.String(), b.String())
	}) {
		if !of(k) {
			continue
		}
		ways, err := contents(k, s.samples[k], codes)
		if err != nil {
			t.Fatal(err)
		}
		inside := len(ways)
		ways = append(ways, frames()...)
		var cells []cell
		for _, w := range ways {
			for _, last := range []time.Duration{0, lasts} {
				if c := (cell{k, s.kinds[k], w, last}); !c.believed() {
					cells = append(cells, c)
				}
			}
		}
		all += len(cells)
		t.Logf("%v: %d ways in what it says, %d in its frame; step %d", k, inside, len(ways)-inside, s.kinds[k])
		drawn = append(drawn, cells...)
	}
	source.Shuffle(len(drawn), func(i, j int) { drawn[i], drawn[j] = drawn[j], drawn[i] })
	if os.Getenv("EFFECTONCE_ANSWERS") != "" { // to look at some of them
		drawn = slices.DeleteFunc(drawn, func(c cell) bool { return !only.MatchString(c.String()) })
	} else {
		drawn = drawn[:min(most, len(drawn))]
	}
	t.Logf("%d kinds of requests, %d codes, %d cells, of which %d are played", len(s.kinds), len(codes), all,
		len(drawn))
	if len(drawn) == 0 {
		t.Fatal("there is no cell")
	}
	return drawn
}

// play plays cells in several lives.
func (s *scene) play(t *testing.T, cells []cell) {
	t.Helper()
	next := make(chan cell)
	go func() {
		defer close(next)
		for _, c := range cells {
			next <- c
		}
	}()
	var playing sync.WaitGroup
	for i := range lives {
		playing.Go(func() { t.Run(fmt.Sprint("life ", i), func(t *testing.T) { s.lives(t, next) }) })
	}
	playing.Wait()
	t.Logf("%d cells were played, %d of them without such an answer", s.played.Load(), s.missed.Load())
	if n := int(s.missed.Load()); n > len(cells)/20 {
		t.Errorf("%d of %d cells had no such answer", n, len(cells))
	}
	for range next { // no life is left that takes them
		t.Error("a cell was not played")
	}
}

// lives plays cells in one life after another: a new one begins behind a cell that failed.
func (s *scene) lives(t *testing.T, cells <-chan cell) {
	var l *life
	var played []string
	end := func() {
		if l == nil {
			return
		}
		if err := errors.Join(l.inKafka(), l.stop()); err != nil {
			t.Errorf("after %s: %v", strings.Join(played, "; "), err)
		}
		l = nil
	}
	for c := range cells {
		if l == nil {
			l, played = s.life(t), nil
		}
		played = append(played, c.String())
		began := time.Now()
		err := l.play(t.Context(), c)
		if errors.Is(err, errSilent) { // or the machine stood still for so long: what is silent is so each time
			err = l.play(t.Context(), c)
		}
		s.played.Add(1)
		if errors.Is(err, errNotReached) {
			s.missed.Add(1)
			t.Logf("MISSED %v", c)
			err = nil
		}
		if err != nil {
			t.Errorf("FAILED %v: %v, behind %q\n%s", c, err, played[max(0, len(played)-2):len(played)-1],
				tail(l.words.take()))
			l.abandon()
			l = nil
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Logf("SLOW %v: %v", c, took)
		}
		if c.loses() { // a slow machine says it behind the cell's end
			end()
		}
	}
	end()
}

func tail(log string) string {
	lines := strings.Split(log, "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

// abandon ends a life that failed.
func (l *life) abandon() {
	l.proxy.set(nil)
	l.proxy.cut()
	_ = l.stop()
}

// play plays a cell.
func (l *life) play(ctx context.Context, c cell) error {
	ctx, cancel := context.WithTimeout(ctx, enough)
	defer cancel()
	l.words.take()
	before := l.words.told()
	s := newSpoil(c.kind, c.way, c.last)
	l.proxy.set(s)
	defer l.proxy.set(nil)
	if err := l.write(ctx); err != nil {
		return err
	}
	if err := l.provoke(ctx, c.step, s); err != nil {
		return err
	}
	if err := l.write(ctx); err != nil {
		return err
	}
	impeded, shown := false, false
	if c.last > 0 {
		at, err := l.effects(ctx)
		if err != nil {
			return err
		}
		long := time.Until(s.ends()) > lasts/2 // or the machine is too slow to tell
		during, over := context.WithDeadline(ctx, s.ends())
		whole := l.whole(during, c.parks())
		over()
		status := l.consumer.Load().Status()
		shown = status.Down || !status.Joined || !status.StalledSince.IsZero()
		now, err := l.effects(ctx)
		if err != nil {
			return err
		}
		impeded = long && s.count() > 2 && whole != nil && now == at
		if err := l.write(ctx); err != nil {
			return err
		}
	}
	if err := l.whole(ctx, c.parks()); err != nil {
		return fmt.Errorf("%d false answers: %w", s.count(), err)
	}
	lost, parks := l.words.bad()
	switch {
	case len(lost) > 0 && !c.loses():
		return fmt.Errorf("%d false answers: it says that records are lost: %s", s.count(), strings.Join(lost, ", "))
	case parks > 0 && !c.parks():
		return fmt.Errorf("%d false answers: %d events were parked", s.count(), parks)
	case impeded && l.words.told() == before && !shown:
		return fmt.Errorf("%d %w", s.count(), errSilent)
	}
	return nil
}

// provoke makes the clients send the request, and waits for its answer.
func (l *life) provoke(ctx context.Context, at step, s *spoil) error {
	for range 4 {
		wait := 4 * time.Second
		switch at {
		case cut:
			l.proxy.cut()
		case again:
			if err := l.restart(); err != nil {
				return err
			}
			wait = 20 * time.Second // a slow machine takes long to join a group
		case steady:
		}
		select {
		case <-s.first:
			return nil
		case <-time.After(wait):
		case <-ctx.Done():
		}
		if ended := l.ended.Load(); ended != nil {
			return *ended
		}
		at = min(at+1, again)
		if err := l.write(ctx); err != nil {
			return err
		}
	}
	return errNotReached
}

var (
	errNotReached = errors.New("no such answer was seen") // none could be spoilt in this way
	errSilent     = errors.New("false answers have held everything up, and nothing was said")
)
