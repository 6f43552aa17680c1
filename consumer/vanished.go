package consumer

import (
	"context"

	"github.com/google/uuid"
)

const whyVanished = "the topic was made again with fewer partitions: unread records of this one are gone"

// reportVanished reports the partitions that the handler's database knows of an earlier log of the topic, and that the
// topic does not have any more. No member gets them, so the one with the first partition tells.
func (p *partition) reportVanished(ctx context.Context, log uuid.UUID) {
	var found sizes
	if !retry(ctx, func() (ok bool) {
		var err error
		found, _, err = p.c.client.sizes(ctx, []string{p.Topic})
		return err == nil && found[p.Topic] > 0
	}) {
		return
	}
	for id := int32(found[p.Topic]); ; id++ {
		gone := Partition{Topic: p.Topic, ID: id}
		at, err := p.c.handler.Progress(ctx, gone.Topic, gone.ID)
		p.c.handler.Revoked(ctx, gone.Topic, gone.ID)
		if err != nil {
			p.c.cfg.Logger.Warn("cannot read whether the handler's database knows partitions that the topic does not "+
				"have any more", "topic", gone.Topic, "partition", gone.ID, "error", err)
		}
		if err != nil || at.Next < 0 || !another(at.Log, log) {
			return
		}
		lost := LostRange{Partition: gone, From: at.Next, To: at.Next}
		p.c.cfg.Logger.Error("records are lost", "why", whyVanished, "topic", gone.Topic, "partition", gone.ID, "from",
			lost.From, "to", lost.To, "halts", false)
		if p.c.cfg.Observer.Lost != nil {
			p.c.cfg.Observer.Lost(lost)
		}
	}
}
