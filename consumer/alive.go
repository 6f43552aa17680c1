package consumer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"

	"github.com/effectonce/effectonce/internal/sleep"
)

// Heartbeats and commits go through the transport, which finds the coordinator each time and opens a new connection
// where one is broken. kafka-go's group has one connection for a generation, and gives the generation up when one
// heartbeat fails: then all members stop and join again, although the broker would have waited for SessionTimeout.

// heartbeat keeps the generation alive until it is over by what the broker says, or by the clock. The generation ends
// with it.
func (g *generation) heartbeat(ctx context.Context) {
	const part = "heartbeats"
	cfg := &g.c.cfg
	defer g.c.outage.forget(part)
	for alive := time.Now(); ; {
		_ = sleep.For(ctx, cfg.HeartbeatInterval)
		if ctx.Err() != nil {
			return
		}
		asked := time.Now()
		err := g.c.client.heartbeat(ctx, cfg, g.gen)
		switch {
		case err == nil:
			alive = asked
			g.c.outage.works(part)
		case isFenced(err), errors.Is(err, kafka.RebalanceInProgress), ctx.Err() != nil:
			return
		default:
			g.c.outage.fail(part, err)
			if time.Since(alive) >= cfg.SessionTimeout {
				return // the partitions are others' by now
			}
		}
	}
}

// commit commits offsets of the generation, and says when that cannot be done.
func (g *generation) commit(ctx context.Context, next offsets) error {
	err := g.c.client.commit(ctx, &g.c.cfg, g.gen, next)
	switch {
	case err == nil:
		g.c.outage.works(commitPart)
	case !isFenced(err) && !errors.Is(err, kafka.RebalanceInProgress):
		g.c.outage.fail(commitPart, err)
	}
	return err
}

const commitPart = "offset commits"

func (c *client) heartbeat(ctx context.Context, cfg *Config, gen *kafka.Generation) error {
	ctx, cancel := context.WithTimeout(ctx, min(netTimeout, cfg.SessionTimeout/3))
	defer cancel()
	res, err := c.transport.RoundTrip(ctx, c.addr, &heartbeatRequest{cfg.ClientID, gen.GroupID, gen.ID, gen.MemberID})
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	if code := res.(*heartbeatResponse).errorCode; code != 0 {
		return fmt.Errorf("heartbeat: %w", kafka.Error(code))
	}
	return nil
}

// commit does not go through kafka.Client's method, which says that all records are of leader epoch 0.
func (c *client) commit(ctx context.Context, cfg *Config, gen *kafka.Generation, next offsets) error {
	ctx, cancel := context.WithTimeout(ctx, min(netTimeout, cfg.SessionTimeout/3))
	defer cancel()
	req := &offsetcommit.Request{
		GroupID: gen.GroupID, GenerationID: gen.ID, MemberID: gen.MemberID,
		RetentionTimeMs: -1,
	}
	for topic, partitions := range next {
		t := offsetcommit.RequestTopic{Name: topic}
		for id, offset := range partitions {
			t.Partitions = append(t.Partitions, offsetcommit.RequestPartition{
				PartitionIndex: int32(id), CommittedOffset: offset, CommitTimestamp: -1, CommittedLeaderEpoch: -1,
			})
		}
		req.Topics = append(req.Topics, t)
	}
	res, err := c.transport.RoundTrip(ctx, c.addr, req)
	if err != nil {
		return fmt.Errorf("offset commit: %w", err)
	}
	for _, t := range res.(*offsetcommit.Response).Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 {
				return fmt.Errorf("offset commit of %s-%d: %w", t.Name, p.PartitionIndex, kafka.Error(p.ErrorCode))
			}
		}
	}
	return nil
}

// heartbeatRequest is version 0, which every broker speaks. kafka-go's own message does not go to the coordinator, and
// has fields of version 4 wrong.
type heartbeatRequest struct {
	clientID, group string
	generation      int32
	member          string
}

type heartbeatResponse struct{ errorCode int16 }

var (
	_ protocol.GroupMessage = (*heartbeatRequest)(nil)
	_ protocol.RawExchanger = (*heartbeatRequest)(nil)
)

// ApiKey makes it a message of kafka-go's protocol.
func (r *heartbeatRequest) ApiKey() protocol.ApiKey { return protocol.Heartbeat }

// ApiKey makes it a message of kafka-go's protocol.
func (r *heartbeatResponse) ApiKey() protocol.ApiKey { return protocol.Heartbeat }

// Group routes it to the group's coordinator.
func (r *heartbeatRequest) Group() string { return r.group }

// Required asks for the raw exchange.
func (r *heartbeatRequest) Required(map[protocol.ApiKey]int16) bool { return true }

// RawExchange sends the request and reads the answer.
func (r *heartbeatRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	be := binary.BigEndian
	b := str(requestHead(protocol.Heartbeat, 0, r.clientID), r.group)
	b = str(be.AppendUint32(b, uint32(r.generation)), r.member)
	be.PutUint32(b, uint32(len(b)-4))
	answer, err := exchange(rw, b, 64)
	if err != nil {
		return nil, err
	}
	a := reader{b: answer}
	res := &heartbeatResponse{errorCode: a.int16()}
	if a.short {
		return nil, errors.New("an answer to a heartbeat that ends too early")
	}
	return res, nil
}
