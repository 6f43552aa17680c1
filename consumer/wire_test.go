package consumer

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fetchAnswer returns a broker's answer to a fetch of a partition, as it travels.
func fetchAnswer(version int16, topic string, id uuid.UUID, partition, throttle int32) []byte {
	res := kmsg.NewPtrFetchResponse()
	res.SetVersion(version)
	res.ThrottleMillis = throttle
	of := kmsg.NewFetchResponseTopic()
	of.Topic, of.TopicID = topic, id
	part := kmsg.NewFetchResponseTopicPartition()
	part.Partition, part.RecordBatches = partition, batch(0, 0, 0, -1, rec(0, "a"))
	part.HighWatermark, part.LastStableOffset = 12, 7
	of.Partitions = append(of.Partitions, part)
	res.Topics = append(res.Topics, of)
	frame := make([]byte, 8)
	if res.IsFlexible() {
		frame = append(frame, 0)
	}
	frame = res.AppendTo(frame)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

// answering is a connection on which an answer waits.
type answering struct {
	io.Writer
	io.Reader
}

// An answer about another partition, or another topic, is none: its offsets would be taken for the partition's.
func TestAnswerAboutAnotherPartition(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	for version := int16(minFetchVersion); version <= logFetchVersion; version++ {
		if version == 12 { // not spoken
			continue
		}
		for name, of := range map[string]struct {
			topic     string
			id        uuid.UUID
			partition int32
			ok        bool
		}{
			"the partition's":   {"t", id, 3, true},
			"another partition": {"t", id, 2, false},
			"another topic":     {"s", uuid.New(), 3, false},
		} {
			r := &fetchRequest{topic: "t", log: id, partition: 3, responseLimit: 1 << 20, version: version}
			res, err := r.RawExchange(answering{
				io.Discard, bytes.NewReader(fetchAnswer(version, of.topic, of.id, of.partition, 0)),
			})
			if ok := err == nil && len(res.(*fetchResponse).records) > 0; ok != of.ok {
				t.Errorf("v%d, %s: %v", version, name, err)
			}
		}
	}
}

// Two requests have two correlation ids: the answer to the one is none to the other (kafkaguard).
func TestRequestsHaveTheirOwnIDs(t *testing.T) {
	t.Parallel()
	r := &fetchRequest{topic: "t", version: logFetchVersion}
	if a, b := r.encode(), r.encode(); bytes.Equal(a[8:12], b[8:12]) {
		t.Errorf("%x twice", a[8:12])
	}
}

// A throttle time of weeks stops no partition.
func TestThrottleIsBounded(t *testing.T) {
	t.Parallel()
	for said, want := range map[int32]time.Duration{
		-1: 0, 0: 0, 500: 500 * time.Millisecond, math.MaxInt32: maxThrottle, math.MinInt32: 0,
	} {
		res, err := decodeFetch(fetchAnswer(logFetchVersion, "t", uuid.New(), 0, said)[8:], logFetchVersion)
		if err != nil || res.throttle != want {
			t.Errorf("%d ms: %v, %v", said, res, err)
		}
	}
}

// No checksum covers the offset at which a batch begins. Batches that are not in their order, and those beyond the end
// of the log, would move the position over records.
func TestBatchesAreInOrder(t *testing.T) {
	t.Parallel()
	at := func(bases ...int64) (b []byte) {
		for _, base := range bases {
			b = append(b, batch(base, 1, 0, -1, rec(0, "a"), rec(1, "b"))...)
		}
		return b
	}
	whole := at(4, 6)
	for name, c := range map[string]struct {
		b   []byte
		end int64
		ok  bool
	}{
		"nothing":               {nil, 0, true},
		"in order":              {at(4, 6, 8), 10, true},
		"with a gap":            {at(4, 60), 70, true},
		"end not known":         {at(4, 6), -1, true},
		"the second cut off":    {whole[:len(whole)-1], 6, true},
		"appended meanwhile":    {at(4, 6), 4, true},
		"beyond the end":        {at(4, 8), 7, false},
		"far beyond the end":    {at(1<<56, 6), 8, false},
		"the first moved":       {at(5, 6), 100, false},
		"backwards":             {at(6, 4), 100, false},
		"twice":                 {at(4, 4), 100, false},
		"before all":            {at(-9, 6), 100, false},
		"the greatest":          {at(math.MaxInt64), -1, false},
		"of another format":     {append(bytes.Repeat([]byte{0}, batchHead), 9), 100, true},
		"of no possible length": {append(binary.BigEndian.AppendUint32(at(4)[:8:8], 3), at(4)[12:]...), 100, true},
	} {
		if err := inOrder(c.b, 4, c.end); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
