package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/callback"
	"github.com/effectonce/effectonce/internal/kafkaguard"
	"github.com/effectonce/effectonce/internal/sleep"
)

// Consumer is one member of a consumer group. Several consumers in one process are several members. Run may be called
// once.
type Consumer struct {
	handler       inbox.Handler
	brokers       []string
	topics        []string
	cfg           Config
	outage        *outage
	client        *client   // set by Run
	loggedMissing string    // the unreadable topics that were logged last
	loggedAt      time.Time // when

	standstill standstill
	noIDs      noIDs

	mu       sync.Mutex
	started  bool
	member   *session // nil: not in the group
	outSince time.Time
	missing  []string
	absent   map[string]int // how often Kafka has said that a topic does not exist; one answer alone does not count
}

// New returns a consumer that passes the events of topics to h. It checks everything that can be checked without a
// broker; Run waits for missing brokers and topics.
func New(h inbox.Handler, brokers, topics []string, cfg Config) (*Consumer, error) {
	if h == nil {
		return nil, errors.New("consumer: no handler: pass what Each or Batch of an inbox returns")
	}
	if len(brokers) == 0 {
		return nil, errors.New(`consumer: no brokers: pass at least one address, such as "localhost:9092"`)
	}
	for _, b := range brokers {
		if !kafkaguard.IsAddress(b) {
			return nil, fmt.Errorf("consumer: broker %q is not host:port", b)
		}
	}
	if len(topics) == 0 || slices.Contains(topics, "") {
		return nil, errors.New("consumer: topics must name at least one topic, and none may be empty")
	}
	orDefault(&cfg.Group, h.Consumer())
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Consumer{
		handler: h, brokers: slices.Clone(brokers),
		topics: slices.Compact(slices.Sorted(slices.Values(topics))), cfg: cfg,
	}
	c.cfg.Logger = cfg.Logger.With("group", cfg.Group)
	c.cfg.Observer = callback.Guarded(cfg.Observer, "Observer", c.cfg.Logger)
	c.outage = &outage{log: c.cfg.Logger, observer: &c.cfg.Observer}
	return c, nil
}

// Run joins the group and consumes until ctx ends. It calls the handler's Prepare first, repeatedly until it succeeds.
// When ctx ends, Run stops fetching, lets running handlers continue for up to DrainTimeout, commits the decided
// offsets, leaves the group and returns nil. Run waits for unreachable brokers and missing topics; a missing topic does
// not delay the others. Run returns an error only if it was called before. Run waits for the handlers to return, even
// for one that ignores its ctx.
func (c *Consumer) Run(ctx context.Context) error {
	c.mu.Lock()
	started := c.started
	c.started = true
	if !started {
		c.outSince = time.Now()
	}
	c.mu.Unlock()
	if started {
		return errors.New("consumer: Run was called before: make a new Consumer")
	}
	if !c.prepare(ctx) {
		return nil
	}
	c.client = newClient(&c.cfg, c.brokers, c.topics)
	defer c.client.close()
	for checked := false; ; checked = true {
		topics := c.awaitTopics(ctx)
		if len(topics) == 0 {
			return nil
		}
		if !checked {
			c.checkRetention(ctx, topics)
		}
		c.session(ctx, topics)
	}
}

// prepare calls the handler's Prepare until it succeeds. It returns false if ctx ended first.
func (c *Consumer) prepare(ctx context.Context) bool {
	said := false
	return retry(ctx, func() bool {
		err := c.handler.Prepare(ctx, c.cfg.Group)
		if err != nil && !said && ctx.Err() == nil {
			said = true
			c.cfg.Logger.Error("the handler's Prepare failed: retrying until it succeeds", "error", err)
		}
		return err == nil
	})
}

// retry calls do with growing pauses until it returns true. It returns false if ctx ended.
func retry(ctx context.Context, do func() bool) bool {
	wait := newBackOff()
	for ctx.Err() == nil {
		if do() {
			return ctx.Err() == nil
		}
		_ = sleep.For(ctx, wait.NextBackOff())
	}
	return false
}

// awaitTopics waits until at least one topic can be read, and returns all that can. It returns none if ctx ended.
func (c *Consumer) awaitTopics(ctx context.Context) (topics []string) {
	const part = "topics"
	retry(ctx, func() bool {
		found, missing, err := c.client.sizes(ctx, c.topics)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			c.outage.fail(part, err)
		default:
			c.outage.works(part)
			c.logMissing(missing)
			topics = slices.Sorted(maps.Keys(found))
		}
		return len(topics) > 0
	})
	return topics
}

// missingEvery is how often missing topics are logged again: nothing else says that they are not consumed.
const missingEvery = 5 * time.Minute

// logMissing logs the topics that cannot be read, if they changed since the last call, and now and then.
func (c *Consumer) logMissing(missing map[string]error) {
	before, topics := c.loggedMissing, slices.Sorted(maps.Keys(missing))
	c.setMissing(topics, missing)
	c.loggedMissing = fmt.Sprint(missing) // fmt sorts the keys
	switch {
	case c.loggedMissing == before && (len(missing) == 0 || time.Since(c.loggedAt) < missingEvery):
	case len(missing) > 0:
		c.loggedAt = time.Now()
		c.cfg.Logger.Error("topics are missing: create them (kafka-topics.sh --create), or let this user describe "+
			"and read them; the others are consumed meanwhile",
			"topics", strings.Join(topics, ", "), "answers", c.loggedMissing)
	case before != "":
		c.cfg.Logger.Info("no topic is missing any more")
	}
}

func (c *Consumer) setMissing(topics []string, answers map[string]error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.missing = topics
	if c.absent == nil {
		c.absent = map[string]int{}
	}
	for topic, err := range answers {
		if errors.Is(err, kafka.UnknownTopicOrPartition) {
			c.absent[topic]++
		}
	}
	for _, topic := range c.topics {
		if c.absent[topic] == 1 && answers[topic] == nil { // one answer may be false
			delete(c.absent, topic)
		}
	}
}

// wasAbsent reports whether a topic did not exist at some time since Run.
func (c *Consumer) wasAbsent(topic string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.absent[topic] > 1
}

// client sends the requests that do not belong to the group: metadata, list offsets and fetch.
type client struct {
	addr      net.Addr
	conns     *conns
	transport *kafka.Transport
}

func newClient(cfg *Config, brokers, topics []string) *client {
	cs := newConns(cfg.Dial)
	return &client{addr: kafka.TCP(brokers...), conns: cs, transport: &kafka.Transport{
		Dial: kafkaguard.Dial(cs.dial, cfg.TLS), DialTimeout: netTimeout, ClientID: cfg.ClientID, SASL: cfg.SASL,
		MetadataTTL:    time.Second, // kafka-go looks up new leaders only this often, even after errors
		MetadataTopics: topics,
	}}
}

// sizes returns the number of partitions of each topic that can be read. missing has the error of each other topic.
func (c *client) sizes(ctx context.Context, topics []string) (found sizes, missing map[string]error, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*netTimeout)
	defer cancel()
	res, err := c.kafka().Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
	if err != nil {
		return nil, nil, fmt.Errorf("metadata: %w", err)
	}
	found, missing = sizes{}, map[string]error{}
	for _, t := range res.Topics {
		if n := len(t.Partitions); n > 0 {
			found[t.Name] = n
		} else {
			missing[t.Name] = t.Error
		}
	}
	return found, missing, nil
}

// fetch sends one fetch request to the partition's leader. It fills in the settings that all requests share.
func (c *client) fetch(ctx context.Context, cfg *Config, req *fetchRequest) (*fetchResponse, error) {
	req.clientID = cfg.ClientID
	if req.maxWait == 0 {
		req.maxWait = cfg.FetchWait
	}
	req.responseLimit = max(cfg.FetchBytes, cfg.MaxBatchBytes) + 1<<20
	res, err := c.transport.RoundTrip(ctx, c.addr, req)
	if err != nil {
		return nil, err
	}
	answer := res.(*fetchResponse)
	if answer.errorCode != 0 {
		return nil, kafka.Error(answer.errorCode)
	}
	return answer, nil
}

func (c *client) kafka() *kafka.Client { return &kafka.Client{Addr: c.addr, Transport: c.transport} }

func (c *client) close() {
	c.transport.CloseIdleConnections()
	c.conns.shutdown()
}
