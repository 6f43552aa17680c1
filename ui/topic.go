package ui

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/ui/verbs"
)

// topicDetail is the state of one topic.
type topicDetail struct {
	Outbox   *operator.TopicState // nil: no outbox, or it does not know the topic
	Err      error                // of the outbox's read
	Held     []operator.HeldEvent // the first held events
	HeldErr  error
	Kafka    doctor.KafkaTopic
	KafkaErr error
}

// detail returns the shared state of a topic, and keeps it from the first viewer on.
func (d *database) detail(h *Handler, topic string) *shared[topicDetail] {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.details[topic]
	if one == nil {
		one = &shared[topicDetail]{
			every: h.cfg.Refresh, timeout: 2 * h.cfg.Timeout,
			read: func(ctx context.Context) topicDetail { return d.readTopic(ctx, h, topic) },
		}
		if d.details == nil {
			d.details = map[string]*shared[topicDetail]{}
		}
		d.details[topic] = one
	}
	return one
}

// looked returns the states of the topics that viewers have opened.
func (d *database) looked() []*shared[topicDetail] {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.details))
}

func (d *database) readTopic(ctx context.Context, h *Handler, topic string) (t topicDetail) {
	reads, cancel := context.WithTimeout(ctx, h.cfg.Timeout)
	defer cancel()
	o, err := d.outbox(viewer)
	if err == nil {
		var st operator.TopicState
		if st, err = o.TopicState(reads, topic); err == nil {
			t.Outbox = &st
		}
	}
	if !errors.Is(err, operator.ErrNoTopic) && !absent(err) {
		t.Err = err
	}
	if t.Outbox != nil && t.Outbox.Held > 0 {
		t.Held, t.HeldErr = o.HeldEvents(reads, topic, page+1)
	}
	if h.cfg.Kafka != nil {
		var groups []string
		for _, r := range h.readers(ctx, topic) {
			groups = append(groups, r.groups()...)
		}
		slices.Sort(groups)
		t.Kafka, t.KafkaErr = doctor.ReadTopic(ctx, client{h.cfg.Kafka}, topic, slices.Compact(groups))
	}
	return t
}

// topicReader is a consumer that has decided events of a topic.
type topicReader struct {
	db *database
	consumer
}

// groups returns the Kafka groups of the consumer's programs.
func (r topicReader) groups() (names []string) {
	for _, p := range r.Programs {
		if p.Group != "" && !slices.Contains(names, p.Group) {
			names = append(names, p.Group)
		}
	}
	return names
}

// readers returns the topic's consumers in all databases that were read.
func (h *Handler) readers(ctx context.Context, topic string) (list []topicReader) {
	for _, d := range h.databases {
		st, _ := d.state.get(ctx, 0)
		for _, c := range st.Inbox {
			if slices.ContainsFunc(c.Partitions, func(p partitionState) bool { return p.Topic == topic }) {
				list = append(list, topicReader{d, c})
			}
		}
	}
	return list
}

type topicPage struct {
	DB, Topic    string
	ReadOnly     bool
	Outbox       *operator.TopicState
	Away         string
	NoKafka      bool
	Kafka        doctor.KafkaTopic
	KafkaSays    string
	Pinned       int64 // partitions
	InKafka      int64 // partitions; 0: unknown
	Resized      bool  // the partition count differs from the pinned one
	OtherCluster bool  // the brokers belong to another cluster
	Most         bool  // more events are held than were counted
	Partitions   []topicPartition
	Readers      []readerView
	Held         []heldEvent
	MoreHeld     bool
	HeldSays     string
	Pause        string // commands
	Resume       string
	Accept       string
	Anyway       string
	Cluster      string
	DiscardAll   string
}

// topicPartition is a partition in Kafka and in the outbox.
type topicPartition struct {
	operator.HeldPartition
	Kafka *doctor.KafkaPartition // nil: unknown
}

// Name returns the partition's number, or what stands in its place.
func (p topicPartition) Name() string {
	if p.Partition < 0 {
		return "the topic as a whole"
	}
	return strconv.Itoa(int(p.Partition))
}

// readerView is the progress of one consumer.
type readerView struct {
	DB, Consumer string
	Groups       []string
	Partitions   []readerPartition
}

type readerPartition struct {
	partitionView
	Committed []int64 // by group; -1: nothing, or unknown
}

type heldEvent struct {
	operator.HeldEvent
	Discard string // command
}

func showTopic(q *request) error {
	name := q.PathValue("topic")
	st, _, why := q.stateOf(q.db)
	p := topicPage{
		DB: q.db.Name, Topic: name, ReadOnly: !st.MayChange, NoKafka: q.h.cfg.Kafka == nil, Away: why,
		Pause:      commandOf(q.db, verbs.PauseTopic{Topic: name}),
		Resume:     commandOf(q.db, verbs.ResumeTopic{Topic: name}),
		DiscardAll: commandOf(q.db, verbs.DiscardHeld{Topic: name, All: true}),
	}
	if why == "" {
		if err := q.fillTopic(&p, name); err != nil {
			return err
		}
	}
	return q.render("topic", http.StatusOK, view{Title: "Topic " + name, Nav: "topics", Live: true, Body: p})
}

func (q *request) fillTopic(p *topicPage, name string) error {
	unknown := notFound("Neither this outbox nor a consumer here knows this topic.")
	if !q.who.Scope.whole(name) { // the figures count all tenants
		return unknown
	}
	readers := q.h.readers(q.Context(), name)
	// A request for an unknown name leaves nothing in memory, and does not ask Kafka.
	known, _ := q.db.topics.get(q.Context(), q.h.cfg.Timeout)
	switch {
	case len(readers) > 0, slices.ContainsFunc(known.List, func(t operator.Topic) bool { return t.Topic == name }):
	case known.Err != nil && !absent(known.Err):
		p.Away = away(known.Err)
		return nil
	default:
		return unknown
	}
	t, at := q.db.detail(q.h, name).get(q.Context(), 2*q.h.cfg.Timeout)
	switch {
	case at.IsZero():
		p.Away = "It has not answered yet."
		return nil
	case t.Err != nil:
		p.Away = away(t.Err)
	}
	p.Outbox, p.Kafka = t.Outbox, t.Kafka
	if t.KafkaErr != nil {
		p.KafkaSays = t.KafkaErr.Error()
	}
	if o := t.Outbox; o != nil {
		p.Pinned, p.InKafka = int64(o.Partitions), int64(len(t.Kafka.Partitions))
		p.Resized = p.InKafka > 0 && p.Pinned > 0 && p.InKafka != p.Pinned
		p.OtherCluster = o.Cluster != "" && t.Kafka.Cluster != "" && o.Cluster != t.Kafka.Cluster
		p.Most = o.Held >= relay.SampleLimit
		accept := verbs.AcceptPartitions{Topic: name, Partitions: int(p.InKafka)}
		cluster := verbs.AcceptCluster{Cluster: "..."}
		var unknown []string
		if p.InKafka == 0 {
			unknown = []string{"--partitions", "..."}
		}
		if p.OtherCluster {
			cluster.Cluster = t.Kafka.Cluster
		}
		p.Accept, p.Cluster = commandOf(q.db, accept, unknown...), commandOf(q.db, cluster)
		accept.Anyway = true
		p.Anyway = commandOf(q.db, accept, unknown...)
	}
	p.Partitions = partitionsOf(t)
	for _, r := range readers {
		p.Readers = append(p.Readers, viewOf(r, name, t.Kafka))
	}
	if t.HeldErr != nil {
		p.HeldSays = away(t.HeldErr)
	}
	p.MoreHeld = len(t.Held) > page
	for _, e := range t.Held[:min(len(t.Held), page)] {
		p.Held = append(p.Held, heldEvent{
			e, commandOf(q.db, verbs.DiscardHeld{Topic: name, MessageID: e.MessageID.String()}),
		})
	}
	return nil
}

// partitionsOf returns the partitions in Kafka, and others that have held events.
func partitionsOf(t topicDetail) (list []topicPartition) {
	for i := range t.Kafka.Partitions {
		p := &t.Kafka.Partitions[i]
		list = append(list, topicPartition{operator.HeldPartition{Partition: int32(p.Partition)}, p})
	}
	if t.Outbox == nil {
		return list
	}
	for _, held := range t.Outbox.HeldIn {
		at := slices.IndexFunc(list, func(p topicPartition) bool { return p.Partition == held.Partition })
		if at < 0 {
			at, list = len(list), append(list, topicPartition{})
		}
		list[at].HeldPartition = held
	}
	return list
}

func viewOf(r topicReader, topic string, in doctor.KafkaTopic) readerView {
	v := readerView{DB: r.db.Name, Consumer: r.Consumer, Groups: r.groups()}
	x := examination{Ends: map[partition]int64{}}
	for _, p := range in.Partitions {
		if p.End >= 0 {
			x.Ends[partition{topic, int32(p.Partition)}] = p.End
		}
	}
	for _, p := range r.db.partitions(r.consumer, x) {
		if p.Topic != topic {
			continue
		}
		one := readerPartition{partitionView: p}
		for _, group := range v.Groups {
			committed := int64(-1)
			for _, k := range in.Partitions {
				if at, ok := k.Groups[group]; ok && k.Partition == int(p.Partition) {
					committed = at
				}
			}
			one.Committed = append(one.Committed, committed)
		}
		v.Partitions = append(v.Partitions, one)
	}
	return v
}
