package reads

import (
	"context"
	"errors"
	"slices"

	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/operator"
)

// Topic is the state of one topic.
type Topic struct {
	Outbox   *operator.TopicState // nil: no outbox, or it does not know the topic
	Err      error                // of the outbox's read
	Held     []operator.HeldEvent // the first held events
	HeldErr  error
	Kafka    doctor.KafkaTopic
	KafkaErr error
}

// Detail returns the shared state of a topic, and keeps it from the first viewer on.
func (d *Database) Detail(topic string, all []*Database) *Shared[Topic] {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.details[topic]
	if one == nil {
		one = &Shared[Topic]{
			every: d.cfg.Refresh, timeout: 2 * d.cfg.Timeout,
			read: func(ctx context.Context) (Topic, error) { return d.readTopic(ctx, topic, all), nil },
		}
		if d.details == nil {
			d.details = map[string]*Shared[Topic]{}
		}
		d.details[topic] = one
	}
	return one
}

func (d *Database) readTopic(ctx context.Context, topic string, all []*Database) (t Topic) {
	reads, cancel := context.WithTimeout(ctx, d.cfg.Timeout)
	defer cancel()
	o, err := d.Outbox(Viewer)
	if err == nil {
		var st operator.TopicState
		if st, err = o.TopicState(reads, topic); err == nil {
			t.Outbox = &st
		}
	}
	if !errors.Is(err, operator.ErrNoTopic) && !pgerr.Absent(err) {
		t.Err = err
	}
	if t.Outbox != nil && t.Outbox.Held > 0 {
		t.Held, t.HeldErr = o.HeldEvents(reads, topic, Page+1)
	}
	if d.cfg.Kafka != nil {
		var groups []string
		readers, _ := Readers(ctx, all, topic)
		for _, r := range readers {
			groups = append(groups, r.Groups()...)
		}
		slices.Sort(groups)
		t.Kafka, t.KafkaErr = doctor.ReadTopic(ctx, client{d.cfg.Kafka}, topic, slices.Compact(groups))
	}
	return t
}

// Reader is a consumer that has decided events of a topic.
type Reader struct {
	DB *Database
	inboxoperator.ConsumerDiagnosis
}

// Groups returns the Kafka groups of the consumer's programs.
func (r Reader) Groups() (names []string) {
	for _, p := range r.Programs {
		if p.Group != "" && !slices.Contains(names, p.Group) {
			names = append(names, p.Group)
		}
	}
	return names
}

// Readers returns the consumers of a topic in all databases that were read, and the names of the others.
func Readers(ctx context.Context, all []*Database, topic string) (list []Reader, unread []string) {
	for _, d := range all {
		st, _, err := d.State.Get(ctx, 0)
		if err != nil {
			unread = append(unread, d.Name)
		}
		for _, c := range st.Inbox {
			of := func(p inboxoperator.PartitionState) bool { return p.Topic == topic }
			if slices.ContainsFunc(c.Partitions, of) {
				list = append(list, Reader{d, c})
			}
		}
	}
	return list, unread
}
