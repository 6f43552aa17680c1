package consumer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/segmentio/kafka-go/protocol"
)

// This file does not use kafka.Client.Fetch, which drops information that correctness needs. It hides the list of
// aborted transactions. It hides the last offset of a batch, so a batch whose last records were compacted away is
// fetched for ever. It ignores errors after the first good batch. A malformed record count panics in a goroutine of its
// own. The transport (connections, TLS, SASL, leaders) is kafka-go's; only the fetch request and its response are
// encoded and decoded here, through kafka-go's RawExchanger hook.

// Supported versions of the Fetch API: 4 is the first with transactions, 12 is the first flexible one, 13 names a topic
// by its id. By name, a topic that was made again looks like the old one.
const (
	minFetchVersion = 4
	logFetchVersion = 13
)

// fetchRequest asks the leader of one partition for records. It may be used once.
type fetchRequest struct {
	clientID      string
	topic         string
	log           uuid.UUID // the topic's id; zero: ask by name
	partition     int32
	offset        int64
	epoch         int32 // the leader epoch of the record before offset; -1: not known
	maxBytes      int32
	maxWait       time.Duration
	uncommitted   bool
	responseLimit int

	version int16
}

// fetchResponse is the leader's response.
type fetchResponse struct {
	of            *fetched // nil: it has no topic
	errorCode     int16
	throttle      time.Duration // how long the broker reads no further request of this client
	highWatermark int64         // -1: not known
	first         int64         // where the log begins; -1: not known
	stable        int64         // the last stable offset: where the first open transaction begins; -1: not known
	diverged      int64         // where the log was cut below the asked offset, and grew again; -1: it was not
	aborted       []abortedTxn
	records       []byte // record batches; the last one may be incomplete
}

// fetched is what a response is about.
type fetched struct {
	topic     string // or its id
	partition int32
}

type abortedTxn struct{ producer, first int64 }

var (
	_ protocol.BrokerMessage = (*fetchRequest)(nil)
	_ protocol.RawExchanger  = (*fetchRequest)(nil)
)

// ApiKey implements protocol.Message.
func (r *fetchRequest) ApiKey() protocol.ApiKey { return protocol.Fetch }

// ApiKey implements protocol.Message.
func (r *fetchResponse) ApiKey() protocol.ApiKey { return protocol.Fetch }

// Broker routes the request to the partition's leader.
func (r *fetchRequest) Broker(cluster protocol.Cluster) (protocol.Broker, error) {
	p, ok := cluster.Topics[r.topic].Partitions[r.partition]
	if !ok {
		return protocol.Broker{}, errors.New("the brokers do not know the partition (yet)")
	}
	b, ok := cluster.Brokers[p.Leader]
	if !ok {
		return protocol.Broker{}, errors.New("the partition has no leader")
	}
	return b, nil
}

// Required stores the version to use on this connection, and selects the raw exchange.
func (r *fetchRequest) Required(versions map[protocol.ApiKey]int16) bool {
	r.version = versions[protocol.Fetch] // at most the newest one that kafka-go knows, see topicIDRequest
	if r.log != uuid.Nil {
		r.version = logFetchVersion
	}
	return true
}

// RawExchange sends the request and reads the whole response into one allocation, which the events' payloads share.
func (r *fetchRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	if r.version < minFetchVersion {
		return nil, fmt.Errorf("the broker speaks Fetch v%d: Kafka 0.11 or newer is needed", r.version)
	}
	b, err := exchange(rw, r.encode(), r.responseLimit)
	if errors.Is(err, errAnswerSize) {
		err = fmt.Errorf("%w: raise Config.MaxBatchBytes if the topic's batches are that large", err)
	}
	if err != nil {
		return nil, err
	}
	res, err := decodeFetch(b, r.version)
	if err == nil && res.of != nil && *res.of != (fetched{r.askedFor(), r.partition}) {
		err = fmt.Errorf("a fetch answer for partition %d of %q, not %d of %q", res.of.partition, res.of.topic,
			r.partition, r.askedFor())
	}
	return res, err
}

// askedFor is how the request names the topic.
func (r *fetchRequest) askedFor() string {
	if r.version >= logFetchVersion {
		return string(r.log[:])
	}
	return r.topic
}

// exchange sends a request that begins with requestHead, and returns its response without the correlation id, which
// kafkaguard has compared.
func exchange(rw io.ReadWriter, request []byte, limit int) ([]byte, error) {
	binary.BigEndian.PutUint32(request, uint32(len(request)-4))
	if _, err := rw.Write(request); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(rw, size[:]); err != nil {
		return nil, err
	}
	n := int(int32(binary.BigEndian.Uint32(size[:])))
	if n < 4 || n > limit {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", errAnswerSize, n, limit)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(rw, b)
	return b[4:], err
}

var errAnswerSize = errors.New("the size of the answer is out of range")

func (r *fetchRequest) encode() []byte {
	be := binary.BigEndian
	const none = ^uint32(0)
	flexible := r.version >= logFetchVersion
	b := requestHead(protocol.Fetch, r.version, r.clientID)
	b = tags(b, flexible)
	b = be.AppendUint32(b, none) // replica id: none, as a consumer
	b = be.AppendUint32(b, uint32(max(1, r.maxWait.Milliseconds())))
	b = be.AppendUint32(b, 1) // min bytes: answer as soon as there is a record
	b = be.AppendUint32(b, uint32(r.maxBytes))
	if r.uncommitted {
		b = append(b, 0)
	} else {
		b = append(b, 1)
	}
	if r.version >= 7 {
		b = be.AppendUint32(b, 0)    // no fetch session
		b = be.AppendUint32(b, none) // session epoch: start no session
	}
	b = length(b, 1, flexible)
	if flexible {
		b = append(b, r.log[:]...)
	} else {
		b = str(b, r.topic)
	}
	b = length(b, 1, flexible)
	b = be.AppendUint32(b, uint32(r.partition))
	if r.version >= 9 {
		b = be.AppendUint32(b, none) // leader epoch: unknown
	}
	b = be.AppendUint64(b, uint64(r.offset))
	if flexible {
		b = be.AppendUint32(b, uint32(r.epoch))
	}
	if r.version >= 5 {
		b = be.AppendUint64(b, ^uint64(0)) // log start offset: used by followers only
	}
	b = be.AppendUint32(b, uint32(r.maxBytes))
	b = tags(tags(b, flexible), flexible) // the partition's, the topic's
	if r.version >= 7 {
		b = length(b, 0, flexible) // forgotten topics
	}
	if flexible {
		b = length(b, 0, flexible) // rack
	} else if r.version >= 11 {
		b = str(b, "") // rack
	}
	return tags(b, flexible)
}

// requestHead returns the header of a request. The first four bytes are reserved for its length.
func requestHead(key protocol.ApiKey, version int16, clientID string) []byte {
	be := binary.BigEndian
	b := be.AppendUint16(make([]byte, 4, 256), uint16(key))
	b = be.AppendUint16(b, uint16(version))
	b = be.AppendUint32(b, rand.Uint32()) //nolint:gosec // correlation id: a repeated answer is none to the next request
	return str(b, clientID)
}

func str(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

// length writes the number of an array's elements, or of a string's bytes in a flexible version.
func length(b []byte, n int, flexible bool) []byte {
	if flexible {
		return binary.AppendUvarint(b, uint64(n)+1)
	}
	return binary.BigEndian.AppendUint32(b, uint32(n))
}

// tags writes that there are no tagged fields, in a flexible version.
func tags(b []byte, flexible bool) []byte {
	if flexible {
		return append(b, 0)
	}
	return b
}

// maxThrottle is three times what brokers ask for by default. Those that want more wait themselves (KIP-219).
const maxThrottle = 30 * time.Second

func decodeFetch(b []byte, version int16) (*fetchResponse, error) {
	r := reader{b: b, flexible: version >= logFetchVersion}
	r.tag(0)
	res := &fetchResponse{highWatermark: -1, first: -1, stable: -1, diverged: -1}
	res.throttle = min(maxThrottle, time.Duration(max(0, r.int32()))*time.Millisecond)
	if version >= 7 {
		res.errorCode = r.int16()
		r.skip(4) // session
	}
	if topics := r.length(); topics != 1 {
		if res.errorCode != 0 || topics == 0 && res.throttle > 0 && !r.short {
			return res, nil // a client above its quota gets an answer without topics (KIP-219)
		}
		return nil, fmt.Errorf("a fetch answer with %d topics instead of one", topics)
	}
	res.of = &fetched{}
	if r.flexible {
		res.of.topic = string(r.take(16))
	} else {
		res.of.topic = r.str()
	}
	if partitions := r.length(); partitions != 1 {
		return nil, fmt.Errorf("a fetch answer with %d partitions instead of one", partitions)
	}
	res.of.partition = r.int32()
	if code := r.int16(); code != 0 {
		res.errorCode = code
	}
	res.highWatermark = r.int64()
	res.stable = r.int64()
	if version >= 5 {
		res.first = r.int64()
	}
	for n := r.length(); n > 0 && !r.short; n-- {
		res.aborted = append(res.aborted, abortedTxn{producer: r.int64(), first: r.int64()})
		r.tag(0)
	}
	if version >= 11 {
		r.skip(4) // preferred read replica
	}
	res.records = r.take(max(0, r.length()))
	if cut := (reader{b: r.tag(0)}); len(cut.b) > 0 {
		cut.skip(4) // the epoch in which the log was cut
		res.diverged, r.short = cut.int64(), r.short || cut.short
	}
	if r.short {
		return nil, errors.New("a fetch answer that ends too early")
	}
	return res, nil
}

// reader reads values from a byte slice. After a value does not fit, short is set and every value is zero.
type reader struct {
	b        []byte
	short    bool
	flexible bool // the version has compact lengths and tagged fields
}

// length reads the number of an array's elements, or of a record set's bytes; -1: null.
func (r *reader) length() int {
	if !r.flexible {
		return int(r.int32())
	}
	return int(min(r.uvarint(), math.MaxInt32)) - 1
}

// tag reads tagged fields, in a flexible version, and returns the one with the number.
func (r *reader) tag(number uint64) (found []byte) {
	if !r.flexible {
		return nil
	}
	for n := r.uvarint(); n > 0 && !r.short; n-- {
		tag := r.uvarint()
		if b := r.take(int(min(r.uvarint(), math.MaxInt32))); tag == number {
			found = b
		}
	}
	return found
}

func (r *reader) uvarint() uint64 { return variable(r, binary.Uvarint) }

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.short, r.b = true, nil
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) skip(n int) { r.take(n) }

func (r *reader) int16() int16 {
	if b := r.take(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (r *reader) int32() int32 {
	if b := r.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (r *reader) int64() int64 {
	if b := r.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

func (r *reader) varint() int64 { return variable(r, binary.Varint) }

// variable reads a number of variable length.
func variable[T int64 | uint64](r *reader, decode func([]byte) (T, int)) T {
	v, n := decode(r.b)
	if n <= 0 {
		r.short, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

// bytes reads a length and that many bytes. It returns nil for the length -1.
func (r *reader) bytes() []byte {
	n := r.varint()
	if n == -1 {
		return nil
	}
	if n > int64(len(r.b)) {
		n = -1
	}
	return r.take(int(n))
}
