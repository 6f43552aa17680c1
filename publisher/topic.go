package publisher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectonce/effectonce/outcome"
	"github.com/segmentio/kafka-go"
)

// topic is the state of a topic, shared by all calls.
type topic struct {
	name     string
	checking chan struct{} // semaphore: one check at a time

	mu      sync.Mutex
	parts   []*partition // as many as pinned; replaced, never changed
	cluster string       // id of their cluster
	checked time.Time    // last check of metadata and Pin, answered or not; zero: check again
	known   time.Time    // last check that both answered
	// changed: metadata shows another count or cluster and Pin has not answered since, so parts must not be used.
	changed bool
	round   int   // number of checks
	refused error // verdict of all events since the last check

	missing time.Time // since when the broker does not know the topic; zero: it does. Guarded by checking.

	// limit is the largest batch, in bytes, that the broker is not known to refuse; 0: Config.BatchBytes.
	limit atomic.Int64
}

// partition serialises the requests to one partition.
type partition struct {
	topic  *topic
	id     int
	send   chan struct{} // semaphore: one request in flight
	leader atomic.Int32  // broker id in the last metadata; -1: none
	alone  atomic.Bool   // batches share no request: the last one failed or was slow
}

func (k *Kafka) topic(name string) *topic {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.topics[name]
	if t == nil {
		t = &topic{name: name, checking: make(chan struct{}, 1)}
		k.topics[name] = t
	}
	return t
}

// resolve returns the topic's partitions, or the verdict of all its events.
//
// While one caller checks a known topic again, the others use the known partitions, unless these are old: another relay
// may send by a count that was accepted since. If no broker answers, all callers use the known partitions, and their
// requests show the error.
func (k *Kafka) resolve(ctx context.Context, t *topic) ([]*partition, error) {
	t.mu.Lock()
	parts, usable, round := t.parts, t.parts != nil && t.refused == nil, t.round
	usable = usable && !t.changed
	fresh, old := usable && time.Since(t.checked) < k.cfg.RecheckEvery, time.Since(t.known) > 2*k.cfg.RecheckEvery
	t.mu.Unlock()
	if fresh {
		return parts, nil
	}
	if usable && !old {
		select {
		case t.checking <- struct{}{}:
		default:
			return parts, nil
		}
	} else if err := k.acquire(ctx, t.checking); err != nil {
		return nil, stopped(err)
	}
	defer func() { <-t.checking }()

	t.mu.Lock()
	if t.round != round { // another caller checked meanwhile
		defer t.mu.Unlock()
		if t.refused != nil {
			return nil, t.refused
		}
		return t.parts, nil
	}
	t.mu.Unlock()
	leaders, err := k.count(ctx, t)
	return k.note(ctx, t, leaders, err)
}

// count reads the topic's leaders from metadata and asks Pin for the count to use. Its errors are verdicts.
func (k *Kafka) count(ctx context.Context, t *topic) ([]int32, error) {
	cluster, leaders, err := k.describe(ctx, t.name)
	if err != nil {
		return nil, k.absent(ctx, t, cluster, err)
	}
	t.missing = time.Time{}
	found := len(leaders)
	pinned := found
	if k.cfg.Pin != nil {
		if pinned, err = k.cfg.Pin(ctx, cluster, t.name, found); err != nil {
			t.doubtCount(cluster, found)
			return nil, fmt.Errorf("publisher: the pinned partition count of topic %s: %w", t.name, err)
		}
	} else if parts := t.snapshot(); parts != nil {
		pinned = len(parts)
	}
	if pinned != found {
		return nil, &outcome.Refusal{
			Topic: true, Err: &PartitionsChangedError{Topic: t.name, Pinned: pinned, Found: found},
		}
	}
	t.mu.Lock()
	t.cluster = cluster
	t.mu.Unlock()
	return leaders, nil
}

// missingFor is how long a topic that was used may be missing: a broker that has just started may not know it yet. It
// bounds only the metadata; while it lasts, requests go to the known partitions, and their answers decide.
const missingFor = 10 * time.Second

// absent returns the verdict of a topic whose metadata is an error. Another cluster's answer says nothing of the topic.
// A topic that was never used is refused at once: a grace would keep the healthy topics of its lanes waiting.
func (k *Kafka) absent(ctx context.Context, t *topic, cluster string, err error) error {
	class := classify(err)
	if class != topicRefuse {
		k.wire.refresh()
	}
	if class != noTopic && class != topicRefuse {
		return err
	}
	if k.cfg.Pin != nil && cluster != "" {
		if _, err := k.cfg.Pin(ctx, cluster, t.name, 0); err != nil {
			return fmt.Errorf("publisher: the cluster of topic %s: %w", t.name, err)
		}
	}
	if class == noTopic && t.snapshot() != nil {
		if t.missing.IsZero() {
			t.missing = time.Now()
		}
		if time.Since(t.missing) < missingFor {
			return err
		}
	}
	return refusal(t.name, err)
}

// note stores count's result and returns resolve's. The topic becomes refused or usable, or keeps its state.
func (k *Kafka) note(ctx context.Context, t *topic, leaders []int32, err error) ([]*partition, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.refused
	if err != nil && !isRefusal(err) {
		if t.parts == nil || was != nil || t.changed {
			return nil, err
		}
		// Check again after a second, not in each call.
		t.checked = time.Now().Add(min(time.Second, k.cfg.RecheckEvery) - k.cfg.RecheckEvery)
		return t.parts, nil
	}
	t.round++
	t.checked, t.refused, t.changed = time.Now(), err, false
	t.known = t.checked
	t.limit.Store(0) // the topic's limit may have been raised
	if err != nil {
		if was == nil {
			k.cfg.Logger.WarnContext(ctx, "topic refused, its events are not sent", "topic", t.name, "error", err)
		}
		return nil, err
	}
	if was != nil {
		k.cfg.Logger.InfoContext(ctx, "topic accepted again", "topic", t.name)
	}
	if len(t.parts) != len(leaders) {
		parts := make([]*partition, len(leaders))
		// Partitions keep their semaphores: an earlier call may have a request in flight.
		for i := copy(parts, t.parts); i < len(parts); i++ {
			parts[i] = &partition{topic: t, id: i, send: make(chan struct{}, 1)}
		}
		t.parts = parts
	}
	for i, leader := range leaders {
		t.parts[i].leader.Store(leader)
	}
	return t.parts, nil
}

func (t *topic) snapshot() []*partition {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.parts
}

// doubtCount marks the partitions as unusable if their count or cluster has changed and it is not known whether the
// change was accepted.
func (t *topic) doubtCount(cluster string, found int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changed = len(t.parts) != found || t.cluster != cluster
}

// clusterChanged reports whether the brokers belong to another cluster than at the topic's last check.
func (k *Kafka) clusterChanged(ctx context.Context, t *topic) bool {
	cluster, _, err := k.describe(ctx, t.name)
	t.mu.Lock()
	defer t.mu.Unlock()
	return err == nil && cluster != t.cluster
}

// doubt makes the next call check the topic again.
func (t *topic) doubt() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.checked = time.Time{}
}

// describe returns the cluster's id and the partitions' leaders from metadata; -1: no leader. With an error of the
// topic it returns the id, too.
func (k *Kafka) describe(ctx context.Context, name string) (cluster string, leaders []int32, err error) {
	k.wire.learn(name, nil)
	res, err := k.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{name}})
	if err != nil {
		return "", nil, fmt.Errorf("publisher: metadata of topic %s: %w", name, unsaid(err))
	}
	for i := range res.Topics {
		t := &res.Topics[i]
		switch {
		case t.Name != name:
		case t.Error != nil:
			return res.ClusterID, nil, fmt.Errorf("publisher: metadata of topic %s: %w", name, t.Error)
		case len(t.Partitions) > 0:
			return res.ClusterID, leadersOf(t.Partitions), nil
		}
	}
	return "", nil, fmt.Errorf("publisher: metadata of topic %s: %w", name,
		errors.New("the broker did not answer for it"))
}

func leadersOf(parts []kafka.Partition) []int32 {
	leaders := make([]int32, len(parts))
	for i := range leaders {
		leaders[i] = -1
	}
	for i := range parts {
		if p := &parts[i]; p.Error == nil && 0 <= p.ID && p.ID < len(leaders) {
			leaders[p.ID] = int32(p.Leader.ID)
		}
	}
	return leaders
}
