package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

// keeping is a handler that keeps the beginning of each partition, as an inbox does.
type keeping struct {
	*handler
	rows *rows
}

// rows outlive a handler.
type rows struct {
	mu sync.Mutex
	of map[int32]inbox.Progress
}

func newKeeping() keeping { return keeping{newHandler(), &rows{of: map[int32]inbox.Progress{}}} }

func (k keeping) Progress(_ context.Context, _ string, partition int32) (inbox.Progress, error) {
	k.rows.mu.Lock()
	defer k.rows.mu.Unlock()
	if p, ok := k.rows.of[partition]; ok {
		return p, nil
	}
	return inbox.Progress{Kept: true, Next: -1}, nil
}

func (k keeping) Begin(_ context.Context, _ string, partition int32, next int64, b inbox.Beginning) error {
	k.rows.mu.Lock()
	defer k.rows.mu.Unlock()
	if next < 0 {
		next = k.rows.of[partition].Next
	}
	k.rows.of[partition] = inbox.Progress{Kept: true, Next: next, Beginning: b}
	return nil
}

// decided has the database know an offset as the first undecided one.
func (k keeping) decided(partition int32, next int64) {
	k.rows.mu.Lock()
	defer k.rows.mu.Unlock()
	p := k.rows.of[partition]
	p.Next = next
	k.rows.of[partition] = p
}

func (k keeping) began(partition int32) inbox.Beginning {
	k.rows.mu.Lock()
	defer k.rows.mu.Unlock()
	return k.rows.of[partition].Beginning
}

// held holds back fetches while it is closed.
type held struct {
	sync.Mutex
	closed chan struct{} // closed when fetches may pass again; nil: they may
	waits  chan struct{} // gets one for each fetch that waits
}

func (h *held) hold() (pass func()) {
	h.Lock()
	defer h.Unlock()
	closed := make(chan struct{})
	h.closed = closed
	return func() {
		h.Lock()
		defer h.Unlock()
		h.closed = nil
		close(closed)
	}
}

func (h *held) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	return heldConn{c, h}, err
}

type heldConn struct {
	net.Conn
	by *held
}

func (c heldConn) Write(b []byte) (int, error) {
	c.by.Lock()
	closed := c.by.closed
	c.by.Unlock()
	if closed != nil && len(b) > 6 && b[4] == 0 && b[5] == 1 { // Fetch
		c.by.waits <- struct{}{}
		<-closed
	}
	return c.Conn.Write(b)
}

// TestP10TopicIsMadeAgain: the new log has grown past the position before anything notices that it is another one. Its
// head is read all the same, and the loss of what was unread in the old log is reported.
func TestP10TopicIsMadeAgain(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	for name, begin := range map[string]consumer.Start{
		"earliest": consumer.StartEarliest,
		"latest":   consumer.StartLatest,
	} {
		for _, stopped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stopped %t", name, stopped), func(t *testing.T) {
				t.Parallel()
				topic := kafkatest.Topic(t, 1)
				lost := make(chan consumer.LostRange, 10)
				hold := &held{waits: make(chan struct{}, 100)}
				cfg := config(topic)
				cfg.Start, cfg.Dial = begin, hold.dial
				cfg.Observer.Lost = func(l consumer.LostRange) { lost <- l }
				h := newKeeping()
				m := start(t, h, topic, cfg)
				await(t, "the beginning", func() bool { return h.began(0).Log != uuid.Nil })
				before := h.began(0)
				kafkatest.Produce(t, topic, records(5, 0)...)
				h.await(t, 5)
				pass := func() {}
				if stopped {
					m.stop(t)
				} else {
					// A fetch that is with the broker is told of the deletion. The next one comes when all is done.
					pass = hold.hold()
					recv(t, "a fetch that is held", hold.waits)
				}
				kafkatest.Remake(t, kafkatest.Brokers(t), topic, 1)
				kafkatest.Produce(t, topic, records(20, 0)...)
				pass()
				if stopped {
					start(t, h, topic, cfg)
				}
				offsetsOf(t, h.await(t, 25)[0][5:], 0, 20)
				if l := recv(t, "the loss", lost); l.Topic != topic || l.From != l.To {
					t.Errorf("%+v", l)
				}
				after := h.began(0)
				if after.Log == before.Log || after.Offset != 0 || !strings.Contains(after.Reason, "made again") {
					t.Errorf("began %+v, then %+v", before, after)
				}
			})
		}
	}
}

// TestP10AddedPartitions: StartLatest is for the first sight of a topic. What is written into partitions that are added
// later is read from the first record on, also if only the group or only the database knows of the first sight.
func TestP10AddedPartitions(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, records(3, 0)...)
	cfg := config(topic)
	cfg.Start = consumer.StartLatest
	h := newHandler()
	m := start(t, h, topic, cfg)
	await(t, "the first sight", func() bool {
		return committed(t, kafkatest.Brokers(t), topic, topic, 1)[0] == 3
	})
	kafkatest.Grow(t, kafkatest.Brokers(t), topic, 3)
	kafkatest.Produce(t, topic, records(10, 0, 1, 2)...)
	seen := h.await(t, 30)
	m.stop(t)
	offsetsOf(t, seen[0], 3, 13)
	offsetsOf(t, seen[1], 0, 10)
	offsetsOf(t, seen[2], 0, 10)
}

// TestP10LogIsCut: a leader that lacked the last records was elected, and the log has grown again past the position.
// The epochs of the leaders tell where it was cut.
func TestP10LogIsCut(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	for name, next := range map[string]int64{"at the group's offset": 8, "at the database's": 6} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testLogIsCut(t, next)
		})
	}
}

// testLogIsCut has the handler's database know next as the first undecided offset.
func testLogIsCut(t *testing.T, next int64) {
	cluster := kafkatest.NewCluster(t, 1)
	topic := kafkatest.TopicAt(t, cluster.Brokers(), 1)
	kafkatest.ProduceAt(t, cluster.Brokers(), topic, records(5, 0)...)
	lost := make(chan consumer.LostRange, 10)
	cfg := config(topic)
	cfg.Observer.Lost = func(l consumer.LostRange) { lost <- l }
	h := newKeeping()
	m := startAt(t, h, cluster.Brokers(), topic, cfg)
	h.await(t, 5)
	m.stop(t)
	h.decided(0, next)
	meta := metadataOf(t, cluster.Brokers(), topic)

	// A restart of its only broker is a new epoch of the partition: the records of the old one end at offset 5.
	cluster.Stop(0)
	cluster.Start(t, 0)
	kafkatest.AwaitLeaders(t, cluster.Brokers(), topic, 1)
	kafkatest.ProduceAt(t, cluster.Brokers(), topic, records(5, 0)...)
	// The group believes that it has read three more of the old epoch: they were cut off.
	commitWith(t, cluster.Brokers(), topic, 8, meta)
	startAt(t, h, cluster.Brokers(), topic, cfg)
	offsetsOf(t, h.await(t, 10)[0], 0, 10)
	if l := recv(t, "the loss", lost); l.From != 8 || l.To != 8 {
		t.Errorf("%+v", l)
	}
}

// TestCommittedEpochIsTheRecords: a fetch, and a batch, has records of two leaders, and only the first one's are
// decided. With another epoch than theirs a cut of the second one's records would be told as one behind the position.
func TestCommittedEpochIsTheRecords(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	cluster := kafkatest.NewCluster(t, 1)
	brokers := cluster.Brokers()
	topic := kafkatest.TopicAt(t, brokers, 1)
	kafkatest.ProduceAt(t, brokers, topic, records(10, 0)...)
	cluster.Stop(0)
	cluster.Start(t, 0)
	kafkatest.AwaitLeaders(t, brokers, topic, 1)
	kafkatest.ProduceAt(t, brokers, topic, records(10, 0)...)
	cfg := config(topic)
	cfg.Batch, cfg.BatchWait = 20, time.Second
	h := newKeeping()
	h.handler.do = func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
		return applied(5), errors.New("the sixth is refused")
	}
	startAt(t, h, brokers, topic, cfg)
	await(t, "the commit", func() bool { return committed(t, brokers, topic, topic, 1)[0] == 5 })
	if meta := metadataOf(t, brokers, topic); !strings.HasSuffix(meta, "epoch 0") {
		t.Error(meta)
	}
}

// TestOffsetSetByHand: a person sets the group's offset forward, to skip records. The database decides where a consumer
// begins, and says so, and what would skip them. A database that is some seconds behind is nothing to tell.
func TestOffsetSetByHand(t *testing.T) {
	t.Parallel()
	topic, brokers := kafkatest.Topic(t, 1), kafkatest.Brokers(t)
	kafkatest.Produce(t, topic, records(8, 0)...)
	k, logBuf := newKeeping(), &logs{}
	cfg := config(topic)
	cfg.Logger = logBuf.logger()
	m := start(t, k, topic, cfg)
	k.await(t, 8)
	m.stop(t)
	k.decided(0, 3)
	m = start(t, k, topic, cfg)
	k.await(t, 13)
	m.stop(t)
	const said = "relay inbox skip"
	if n := logBuf.count(said); n != 0 {
		t.Errorf("the database is some seconds behind: %d lines", n)
	}
	k.decided(0, 3)
	commitWith(t, brokers, topic, 5, "")
	m = start(t, k, topic, cfg)
	offsetsOf(t, k.await(t, 18)[0][13:], 3, 8)
	m.stop(t)
	if n := logBuf.count(said); n != 1 {
		t.Errorf("set to 5 by hand, read from 3 on: %d lines", n)
	}
}

// TestGroupBehindIsTold: the group was set back below the handler's progress. The handler is told that its progress is
// of this log, once that is certain, so that it need not go by ids alone.
func TestGroupBehindIsTold(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic, brokers := kafkatest.Topic(t, 1), kafkatest.Brokers(t)
	kafkatest.Produce(t, topic, records(8, 0)...)
	k, cfg := newKeeping(), config(topic)
	m := start(t, k, topic, cfg)
	k.await(t, 8)
	m.stop(t)
	read := 8
	for _, c := range []struct{ next, want int64 }{{8, 8}, {2, 0}} {
		k.decided(0, c.next)
		commitWith(t, brokers, topic, 2, "")
		m = start(t, k, topic, cfg)
		read += 6
		offsetsOf(t, k.await(t, read)[0][read-6:], 2, 8)
		m.stop(t)
		if got := k.began(0).Decided; c.want > 0 && got != c.want {
			t.Errorf("the database has decided %d, and the handler was told %d", c.next, got)
		}
	}
	// A row of another log is no progress of this one.
	k.rows.mu.Lock()
	k.rows.of[0] = inbox.Progress{Kept: true, Next: 8, Beginning: inbox.Beginning{Log: uuid.New()}}
	k.rows.mu.Unlock()
	commitWith(t, brokers, topic, 2, "")
	m = start(t, k, topic, cfg)
	k.await(t, read+6)
	m.stop(t)
	if got := k.began(0).Decided; got != 0 {
		t.Errorf("the progress is of another log, and the handler was told %d", got)
	}
}

// TestRemovedRecordsThatWereDecidedAreNoLoss: the group was set back below the handler's progress, and retention
// removed what is decided, or more.
func TestRemovedRecordsThatWereDecidedAreNoLoss(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	for _, c := range []struct{ decided, first int64 }{{8, 4}, {8, 8}, {4, 6}} {
		t.Run(fmt.Sprintf("%d of %d", c.decided, c.first), func(t *testing.T) {
			t.Parallel()
			topic, brokers := kafkatest.Topic(t, 1), kafkatest.Brokers(t)
			kafkatest.Produce(t, topic, records(8, 0)...)
			lost := make(chan consumer.LostRange, 10)
			k, cfg := newKeeping(), config(topic)
			cfg.Observer.Lost = func(l consumer.LostRange) { lost <- l }
			m := start(t, k, topic, cfg)
			k.await(t, 8)
			m.stop(t)
			k.decided(0, c.decided)
			commitWith(t, brokers, topic, 2, "")
			kafkatest.DeleteBefore(t, topic, 0, c.first)
			kafkatest.Produce(t, topic, records(2, 0)...)
			start(t, k, topic, cfg)
			offsetsOf(t, k.await(t, int(8+10-c.first))[0][8:], c.first, 10)
			if c.decided >= c.first {
				if len(lost) > 0 {
					t.Errorf("records are said to be lost: %+v", <-lost)
				}
			} else if l := recv(t, "the loss", lost); l.From != c.decided || l.To != c.first {
				t.Errorf("%+v is said to be lost, want offsets %d to %d", l, c.decided, c.first)
			}
		})
	}
}

// metadataOf returns the metadata of the group's offset of partition 0.
func metadataOf(t *testing.T, brokers []string, topic string) (meta string) {
	t.Helper()
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(brokers...), Transport: transport}
	await(t, "the group's offset", func() bool {
		res, err := client.OffsetFetch(t.Context(), &kafka.OffsetFetchRequest{
			GroupID: topic, Topics: map[string][]int{topic: {0}},
		})
		if err != nil || res.Error != nil || len(res.Topics[topic]) != 1 {
			return false
		}
		meta = res.Topics[topic][0].Metadata
		return meta != ""
	})
	return meta
}

func commitWith(t *testing.T, brokers []string, topic string, offset int64, meta string) {
	t.Helper()
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(brokers...), Transport: transport}
	await(t, "the commit", func() bool {
		res, err := client.OffsetCommit(t.Context(), &kafka.OffsetCommitRequest{
			GroupID: topic, GenerationID: -1,
			Topics: map[string][]kafka.OffsetCommit{topic: {{Partition: 0, Offset: offset, Metadata: meta}}},
		})
		return err == nil && len(res.Topics[topic]) == 1 && res.Topics[topic][0].Error == nil
	})
}

// incompressible returns n records with random values of that many bytes.
func incompressible(n, bytes int) []kafkatest.Record {
	many := records(n, 0)
	for i := range many {
		many[i].Value = make([]byte, bytes)
		_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(many[i].Value)
	}
	return many
}

// spoiled flips a byte in each large answer, so often.
type spoiled struct {
	net.Conn
	left *atomic.Int32
}

func (c spoiled) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 2000 && c.left.Add(-1) >= 0 {
		b[n/2] ^= 1
	}
	return n, err
}

// An answer with a flipped byte is fetched again. The partition halts only if that does not help for some time, and
// goes on by itself as soon as it does.
func TestBadAnswersAreFetchedAgain(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	for name, halts := range map[string]bool{"once": false, "for long": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := kafkatest.Topic(t, 1)
			kafkatest.Produce(t, topic, incompressible(20, 1000)...)
			var left atomic.Int32
			if left.Store(1); halts {
				left.Store(1 << 20)
			}
			halted, resumed := make(chan consumer.Halt, 10), make(chan consumer.Partition, 10)
			cfg := config(topic)
			logBuf := &logs{}
			cfg.Logger = logBuf.logger()
			cfg.Observer.Halted = func(h consumer.Halt) { halted <- h }
			cfg.Observer.Resumed = func(p consumer.Partition) { resumed <- p }
			cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				var d net.Dialer
				c, err := d.DialContext(ctx, network, address)
				return spoiled{c, &left}, err
			}
			h := newHandler()
			m := start(t, h, topic, cfg)
			if halts {
				recv(t, "the halt", halted)
				left.Store(0)
				recv(t, "the end of the halt", resumed)
			}
			offsetsOf(t, h.await(t, 20)[0], 0, 20)
			if n := len(m.Status().Halted()); n != 0 || left.Load() > 0 {
				t.Errorf("%d halts in Status, %d answers left to spoil", n, left.Load())
			}
			m.stop(t)
			if n := logBuf.count("cannot be read: fetching again"); n != 1 {
				t.Errorf("%d lines of bad answers", n)
			}
			if !halts && len(halted) > 0 {
				t.Errorf("one bad answer: %+v", <-halted)
			}
		})
	}
}

// A client above its quota gets answers without topics: it waits as long as the broker says, and that is no outage.
func TestThrottledFetchIsNoOutage(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	topic := kafkatest.Topic(t, 1)
	kafkatest.Produce(t, topic, incompressible(20, 50_000)...)
	kafkatest.SetQuota(t, topic, "consumer_byte_rate", 95_000) // a broker measures ten seconds
	logBuf := &logs{}
	cfg := config(topic)
	cfg.ClientID, cfg.Logger = topic, logBuf.logger()
	h := newHandler()
	start(t, h, topic, cfg)
	h.await(t, 20)
	kafkatest.Produce(t, topic, records(1, 0)...)
	offsetsOf(t, h.await(t, 21)[0], 0, 21)
	if n := logBuf.count("fetch: "); n != 0 { // a new group's coordinator may be away for a moment
		t.Errorf("%d outages of the fetch:\n%s", n, logBuf.b.String())
	}
}
