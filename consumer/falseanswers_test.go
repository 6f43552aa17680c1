package consumer_test

import (
	"hash/crc32"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

// falseKafka starts an imitation of Kafka with a topic of five records. What answer returns is the answer to requests
// of a kind; nil: the true one.
func falseKafka(t *testing.T, key int16, answer func(kmsg.Request) kmsg.Response, opts ...kfake.Opt) (brokers []string,
	topic string,
) {
	t.Helper()
	k, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	topic = kafkatest.TopicAt(t, k.ListenAddrs(), 1)
	kafkatest.ProduceAt(t, k.ListenAddrs(), topic, records(5, 0)...)
	k.ControlKey(key, func(req kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		res := answer(req)
		return res, nil, res != nil
	})
	return k.ListenAddrs(), topic
}

// fetched returns an answer to a fetch of one partition, without records.
func fetched(req *kmsg.FetchRequest, change func(*kmsg.FetchResponseTopicPartition)) kmsg.Response {
	res := req.ResponseKind().(*kmsg.FetchResponse)
	topic := kmsg.NewFetchResponseTopic()
	topic.Topic, topic.TopicID = req.Topics[0].Topic, req.Topics[0].TopicID
	part := kmsg.NewFetchResponseTopicPartition()
	part.Partition, part.HighWatermark = req.Topics[0].Partitions[0].Partition, 5
	change(&part)
	topic.Partitions = append(topic.Partitions, part)
	res.Topics = append(res.Topics, topic)
	return res
}

// losesNothing is config for a consumer that must not say that records are lost.
func losesNothing(t *testing.T, topic string) consumer.Config {
	t.Helper()
	cfg := config(topic)
	cfg.Observer.Lost = func(l consumer.LostRange) { t.Errorf("records are said to be lost: %+v", l) }
	return cfg
}

// outagesOf returns the errors of the consumer's outages.
func outagesOf(cfg *consumer.Config) <-chan error {
	outages := make(chan error, 100)
	cfg.Observer.Outage = func(o consumer.OutageInfo) {
		if o.Err != nil {
			outages <- o.Err
		}
	}
	return outages
}

// The leader refuses an offset that the log has. That is an outage, until it does so no more.
func TestRefusedOffsetThatIsThereIsAnOutage(t *testing.T) {
	t.Parallel()
	var refuses atomic.Bool
	refuses.Store(true)
	brokers, topic := falseKafka(t, int16(kmsg.Fetch), func(req kmsg.Request) kmsg.Response {
		f := req.(*kmsg.FetchRequest)
		if !refuses.Load() || f.Topics[0].Partitions[0].FetchOffset == 5 {
			return nil
		}
		return fetched(f, func(p *kmsg.FetchResponseTopicPartition) {
			p.ErrorCode = kerr.OffsetOutOfRange.Code
		})
	})
	cfg := losesNothing(t, topic)
	outages := outagesOf(&cfg)
	h := newHandler()
	startAt(t, h, brokers, topic, cfg)
	for !strings.Contains(recv(t, "the outage", outages).Error(), "although the log has the offset") {
	}
	refuses.Store(false)
	offsetsOf(t, h.await(t, 5)[0], 0, 5)
}

// Answers say that the log was cut below the position, each with another one or an error behind it. None is believed
// unless the next one says the same.
func TestOneAnswerCutsNoLog(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		between int16 // the code of the answer between the false ones
		again   bool  // asked when the consumer starts again
	}{
		"the truth between":                 {},
		"an error between":                  {between: kerr.NotLeaderForPartition.Code},
		"an error behind it, at the start":  {between: kerr.OffsetOutOfRange.Code, again: true},
		"an error between, at the start":    {between: kerr.NotLeaderForPartition.Code, again: true},
		"the truth behind it, at the start": {again: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asks atomic.Bool
			var said atomic.Int32
			brokers, topic := falseKafka(t, int16(kmsg.Fetch), func(req kmsg.Request) kmsg.Response {
				f := req.(*kmsg.FetchRequest)
				if p := f.Topics[0].Partitions[0]; !asks.Load() || p.FetchOffset != 5 || p.LastFetchedEpoch < 0 {
					return nil
				}
				n := said.Add(1)
				if n > 3 || n == 2 && c.between == 0 {
					return nil
				}
				return fetched(f, func(p *kmsg.FetchResponseTopicPartition) {
					if n == 2 {
						p.ErrorCode = c.between
						return
					}
					p.DivergingEpoch.Epoch, p.DivergingEpoch.EndOffset = 0, 2
				})
			})
			cfg := losesNothing(t, topic)
			h := newHandler()
			asks.Store(!c.again)
			m := startAt(t, h, brokers, topic, cfg)
			h.await(t, 5)
			if c.again {
				m.stop(t)
				asks.Store(true)
				startAt(t, h, brokers, topic, cfg)
			}
			await(t, "a fetch behind the false answers", func() bool { return said.Load() > 4 })
			kafkatest.ProduceAt(t, brokers, topic, records(2, 0)...)
			offsetsOf(t, h.await(t, 7)[0], 0, 7)
		})
	}
}

// falseBound is falseKafka for the first answers that say where the log begins (timestamp -2) or ends (-1). It counts
// the requests for that.
func falseBound(t *testing.T, timestamp, offset int64, times int32) (brokers []string, topic string,
	asked *atomic.Int32,
) {
	t.Helper()
	asked = new(atomic.Int32)
	brokers, topic = falseKafka(t, int16(kmsg.ListOffsets), func(req kmsg.Request) kmsg.Response {
		of := req.(*kmsg.ListOffsetsRequest).Topics[0]
		if of.Partitions[0].Timestamp != timestamp || asked.Add(1) > times {
			return nil
		}
		part := kmsg.NewListOffsetsResponseTopicPartition()
		part.Partition, part.Timestamp, part.Offset = of.Partitions[0].Partition, -1, offset
		said := kmsg.NewListOffsetsResponseTopic()
		said.Topic, said.Partitions = of.Topic, append(said.Partitions, part)
		res := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		res.Topics = append(res.Topics, said)
		return res
	})
	return brokers, topic, asked
}

// The leader says to each fetch with an epoch that the log was cut, and not below the position: the epoch is not that
// of the record before. The position is read on without it.
func TestCutThatIsNoneStopsNothing(t *testing.T) {
	t.Parallel()
	brokers, topic := falseKafka(t, int16(kmsg.Fetch), func(req kmsg.Request) kmsg.Response {
		f := req.(*kmsg.FetchRequest)
		if p := f.Topics[0].Partitions[0]; p.FetchOffset != 5 || p.LastFetchedEpoch < 0 {
			return nil
		}
		return fetched(f, func(p *kmsg.FetchResponseTopicPartition) {
			p.DivergingEpoch.Epoch, p.DivergingEpoch.EndOffset = 0, 5
		})
	})
	cfg := losesNothing(t, topic)
	outages := outagesOf(&cfg)
	h := newHandler()
	startAt(t, h, brokers, topic, cfg)
	for !strings.Contains(recv(t, "the outage", outages).Error(), "the leader says that the log was cut") {
	}
	kafkatest.ProduceAt(t, brokers, topic, records(2, 0)...)
	offsetsOf(t, h.await(t, 7)[0], 0, 7)
}

// Answers say that the log begins elsewhere, once or for a while. A consumer that believed them would skip what is
// before, or begin where there is no record yet and halt.
func TestFalseBeginningSkipsNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		begins int64
		times  int32
	}{
		"within the log":                 {begins: 3, times: 1},
		"within the log, for a while":    {begins: 3, times: 5},
		"at its end, for a while":        {begins: 5, times: 5},
		"beyond its end":                 {begins: 1 << 39, times: 1},
		"beyond its end, for a while":    {begins: 1 << 39, times: 5},
		"just beyond its end, and again": {begins: 6, times: 2},
		"before it, for a while":         {begins: -1, times: 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokers, topic, asked := falseBound(t, -2, c.begins, c.times)
			cfg := losesNothing(t, topic)
			h := newHandler()
			startAt(t, h, brokers, topic, cfg)
			offsetsOf(t, h.await(t, 5)[0], 0, 5)
			if n := asked.Load(); n <= c.times {
				t.Errorf("the first offset was asked for %d times, and %d answers were to be false", n, c.times)
			}
		})
	}
}

// A fetch does not tell where the log begins, and before that the broker throttles the client.
func TestBeginningThatNoFetchTells(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	brokers, topic := falseKafka(t, int16(kmsg.Fetch), func(req kmsg.Request) kmsg.Response {
		f := req.(*kmsg.FetchRequest)
		if f.Topics[0].Partitions[0].FetchOffset != 5 {
			return nil
		}
		if asked.Add(1) == 1 {
			res := f.ResponseKind().(*kmsg.FetchResponse)
			res.ThrottleMillis = 1
			return res
		}
		return fetched(f, func(*kmsg.FetchResponseTopicPartition) {})
	})
	cfg := config(topic)
	cfg.Observer.Outage = func(o consumer.OutageInfo) { t.Errorf("%+v", o) }
	h := newHandler()
	startAt(t, h, brokers, topic, cfg)
	offsetsOf(t, h.await(t, 5)[0], 0, 5)
	if asked.Load() < 2 {
		t.Error("the client was not throttled")
	}
}

// Answers say that the log ends elsewhere. A consumer that begins at its end begins at the true one.
func TestFalseEndLosesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ends  int64
		times int32
	}{
		"too early":             {ends: 3, times: 1},
		"too late":              {ends: 9, times: 1},
		"too late, for a while": {ends: 9, times: 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokers, topic, asked := falseBound(t, -1, c.ends, c.times)
			cfg := losesNothing(t, topic)
			cfg.Start = consumer.StartLatest
			h := newHandler()
			m := startAt(t, h, brokers, topic, cfg)
			await(t, "the beginning", func() bool {
				s := m.Status()
				return len(s.Partitions) > 0 && s.Partitions[0].Next == 5
			})
			kafkatest.ProduceAt(t, brokers, topic, records(2, 0)...)
			offsetsOf(t, h.await(t, 2)[0], 5, 7)
			if n := asked.Load(); n <= c.times {
				t.Errorf("the end was asked for %d times, and %d answers were to be false", n, c.times)
			}
		})
	}
}

// The coordinator asks for the id of a member that has one, or gives an empty one. That is an outage, and asking again
// takes its time.
func TestMemberIDIsGivenOnce(t *testing.T) {
	t.Parallel()
	for name, id := range map[string]string{"an id each time": "some", "an empty one": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asks atomic.Bool
			asks.Store(true)
			brokers, topic := falseKafka(t, int16(kmsg.JoinGroup), func(req kmsg.Request) kmsg.Response {
				if !asks.Load() {
					return nil
				}
				res := req.ResponseKind().(*kmsg.JoinGroupResponse)
				res.ErrorCode, res.MemberID = kerr.MemberIDRequired.Code, id
				return res
			})
			cfg := config(topic)
			outages := outagesOf(&cfg)
			h := newHandler()
			startAt(t, h, brokers, topic, cfg)
			for !strings.Contains(recv(t, "the outage", outages).Error(), "join group") {
			}
			asks.Store(false)
			offsetsOf(t, h.await(t, 5)[0], 0, 5)
		})
	}
}

// falseStart is falseKafka for the first fetch from the first offset. It counts the fetches from there.
func falseStart(t *testing.T, change func(*kmsg.FetchResponseTopicPartition)) (brokers []string, topic string,
	asked *atomic.Int32,
) {
	t.Helper()
	asked = new(atomic.Int32)
	brokers, topic = falseKafka(t, int16(kmsg.Fetch), func(req kmsg.Request) kmsg.Response {
		f := req.(*kmsg.FetchRequest)
		if f.Topics[0].Partitions[0].FetchOffset > 0 || asked.Add(1) > 1 {
			return nil
		}
		return fetched(f, change)
	})
	return brokers, topic, asked
}

// recordAt returns a batch of one record at an offset.
func recordAt(offset int64) []byte {
	record := kmsg.Record{
		Key: []byte("k"), Value: []byte("v"),
		Headers: []kmsg.Header{{Key: "ce_id", Value: []byte(event.NewID().String())}},
	}
	record.Length = int32(len(record.AppendTo(nil)) - 1)
	b := kmsg.RecordBatch{
		FirstOffset: offset, Magic: 2, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: 1,
		Records: record.AppendTo(nil),
	}
	b.Length = int32(len(b.AppendTo(nil)) - 12)
	b.CRC = int32(crc32.Checksum(b.AppendTo(nil)[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b.AppendTo(nil)
}

// One answer has a record batch from beyond the end of the log: no checksum covers the offset at which a batch begins.
// The position does not follow it.
func TestBatchBeyondTheEndIsFetchedAgain(t *testing.T) {
	t.Parallel()
	brokers, topic, asked := falseStart(t, func(p *kmsg.FetchResponseTopicPartition) {
		p.RecordBatches = recordAt(1 << 40)
	})
	cfg := losesNothing(t, topic)
	h := newHandler()
	startAt(t, h, brokers, topic, cfg)
	offsetsOf(t, h.await(t, 5)[0], 0, 5)
	if asked.Load() < 2 {
		t.Error("the false answer was not asked for")
	}
}

// An answer has records that were appended after the leader had noted its high watermark. They are handled, and nothing
// is wrong.
func TestRecordsBeyondTheHighWatermark(t *testing.T) {
	t.Parallel()
	brokers, topic, asked := falseStart(t, func(p *kmsg.FetchResponseTopicPartition) {
		p.HighWatermark, p.RecordBatches = 0, recordAt(0)
	})
	cfg, logBuf := config(topic), &logs{}
	cfg.Logger = logBuf.logger()
	h := newHandler()
	startAt(t, h, brokers, topic, cfg)
	offsetsOf(t, h.await(t, 5)[0], 0, 5)
	if n := logBuf.count("cannot be read"); n != 0 || asked.Load() != 1 {
		t.Errorf("the first offset was asked for %d times, and %d answers could not be read", asked.Load(), n)
	}
}

// One answer has an offset of the group that is beyond the end of the log: it is asked for again, and not believed.
func TestOneFalseGroupOffsetHaltsNothing(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	brokers, topic := falseKafka(t, int16(kmsg.OffsetFetch), func(req kmsg.Request) kmsg.Response {
		if asked.Add(1) > 1 {
			return nil
		}
		r := req.(*kmsg.OffsetFetchRequest)
		res := r.ResponseKind().(*kmsg.OffsetFetchResponse)
		one := kmsg.NewOffsetFetchResponseTopic()
		one.Topic = r.Topics[0].Topic
		part := kmsg.NewOffsetFetchResponseTopicPartition()
		part.Offset = 500
		one.Partitions = append(one.Partitions, part)
		res.Topics = append(res.Topics, one)
		return res
	})
	h, cfg := newHandler(), losesNothing(t, topic)
	m := startAt(t, h, brokers, topic, cfg)
	offsetsOf(t, h.await(t, 5)[0], 0, 5)
	if n := asked.Load(); n < 3 || len(m.Status().Halted()) > 0 {
		t.Errorf("asked %d times, %d partitions halted", n, len(m.Status().Halted()))
	}
	m.stop(t)
}

// One answer has another id of the topic: the log is not taken for one that was made again.
func TestOneFalseTopicIDLosesNothing(t *testing.T) {
	t.Parallel()
	for name, versions := range map[string]*kversion.Versions{
		"fetched by id": kversion.Stable(), "fetched by name": kversion.V3_0_0(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lies atomic.Bool
			brokers, topic := falseKafka(t, int16(kmsg.Metadata), func(req kmsg.Request) kmsg.Response {
				r := req.(*kmsg.MetadataRequest)
				if r.Version < 10 || len(r.Topics) != 1 || !lies.Swap(false) {
					return nil
				}
				res := r.ResponseKind().(*kmsg.MetadataResponse)
				one := kmsg.NewMetadataResponseTopic()
				one.Topic, one.TopicID = r.Topics[0].Topic, event.NewID()
				res.Topics = append(res.Topics, one)
				return res
			}, kfake.MaxVersions(versions))
			cfg := losesNothing(t, topic)
			h := newHandler()
			for _, n := range []int{5, 7} { // when the group knows no log, and when it knows this one
				lies.Store(true)
				m := startAt(t, h, brokers, topic, cfg)
				offsetsOf(t, h.await(t, n)[0], 0, int64(n))
				m.stop(t)
				if lies.Load() {
					t.Error("the topic's id was not asked for")
				}
				kafkatest.ProduceAt(t, brokers, topic, records(2, 0)...)
			}
		})
	}
}
