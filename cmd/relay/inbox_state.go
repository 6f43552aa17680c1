package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/kafkaconn"
)

type inboxConsumersCommand struct {
	inboxRead
	kafkaconn.Config
}

// consumerEnds is a consumer with the ends of its logs.
type consumerEnds struct {
	operator.ConsumerState
	Partitions []partitionEnd `json:"partitions"`
}

type partitionEnd struct {
	operator.PartitionState
	End *int64 `json:"end"` // nil: Kafka was not asked
}

// lag counts the records that are not decided according to the database.
func (p partitionEnd) lag() (end, lag string) {
	if p.End == nil {
		return "-", "-"
	}
	return strconv.FormatInt(*p.End, 10), strconv.FormatInt(max(*p.End-p.From, 0), 10)
}

// Help is the longer text of --help.
func (*inboxConsumersCommand) Help() string {
	return `DATABASE is the first offset that is not decided in the database. It is written at an assignment, at a halt, when a partition is
idle, and every ten seconds. UNMOVED is the time since it last changed. LAST EFFECT is the time since an effect was committed, as of that write;
released events do not count. PROGRAM ran the consumer within the last three minutes, in the Kafka group GROUP. END and LAG are those of the log, and need
--kafka-brokers; a topic that is gone is named as an error, after the list. TRIES counts the runs of the event at DATABASE. CODE "trying"
means that this event fails and waits for its next attempt, which relay inbox resume starts at once. The group's own offsets do not
matter: a group that is ahead returns to DATABASE.`
}

func (c *inboxConsumersCommand) run(ctx context.Context, p *program) error {
	return c.read(ctx, p, func(ctx context.Context, o *operator.Operator) error {
		list, err := o.Consumers(ctx)
		if err != nil {
			return err
		}
		shown, unknown := c.ends(ctx, list)
		if shown == nil {
			return unknown
		}
		const head = "CONSUMER\tDEDUP\tWINDOW\tFLOOR\tLAST START\tPROGRAM\tGROUP\tPARTITION\tDATABASE\tEND\t" +
			"LAG\tUNMOVED\tLAST EFFECT\tTRIES\tHALTED\tCODE\tERROR"
		err = writeList(p.stdout, c.JSON, shown, head, func(table io.Writer, s consumerEnds) {
			dedup := s.Dedup
			if s.IDsUntil != nil && time.Now().Before(*s.IDsUntil) {
				dedup += " and id"
			}
			window := fmt.Sprintf("%d days", int(s.Window.Hours()/24))
			if s.RetiredAt != nil {
				window = "retired"
			}
			begin := fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s", s.Consumer, dedup, window,
				s.Floor.Format(time.DateOnly), ago(&s.SeenAt), programs(s.Programs), groups(s.Programs))
			if len(s.Partitions) == 0 {
				fmt.Fprintf(table, "%s%s\n", begin, strings.Repeat("\t-", 10))
			}
			for _, t := range s.Partitions {
				code, message := errorText(t.Code), t.Error
				if t.HaltedAt == nil && t.TryingAt != nil {
					code, message = "trying", t.Trying
				}
				end, lag := t.lag()
				fmt.Fprintf(table, "%s\t%s/%d\t%d\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", begin, t.Topic, t.Partition,
					t.From, end, lag, age(t.Unmoved, true), ago(t.EffectAt), t.Attempts, ago(t.HaltedAt), code,
					errorText(message))
			}
		})
		return errors.Join(err, unknown)
	})
}

// ago formats the time since at; nil: never.
func ago(at *time.Time) string {
	if at == nil {
		return "-"
	}
	return age(time.Since(*at), true)
}

// groups lists the Kafka groups of the programs that run a consumer.
func groups(list []operator.Program) string {
	var names []string
	for _, p := range list {
		if p.Group != "" && !slices.Contains(names, p.Group) {
			names = append(names, p.Group)
		}
	}
	return cmp.Or(strings.Join(names, " AND "), "-")
}

// programs lists the programs that run a consumer, each with a host.
func programs(list []operator.Program) string {
	names := make([]string, len(list))
	for i, p := range list {
		names[i] = p.Name + "@" + p.Host
	}
	return cmp.Or(strings.Join(names, " AND "), "-")
}

// ends asks Kafka for the ends of the logs, if its brokers are known. The error says which of them are not known.
func (c *inboxConsumersCommand) ends(ctx context.Context, list []operator.ConsumerState) ([]consumerEnds, error) {
	all := make([]consumerEnds, len(list))
	var partitions []operator.PartitionState
	for i, s := range list {
		all[i] = consumerEnds{ConsumerState: s, Partitions: make([]partitionEnd, len(s.Partitions))}
		for j, p := range s.Partitions {
			all[i].Partitions[j].PartitionState = p
		}
		partitions = append(partitions, s.Partitions...)
	}
	if len(c.Brokers) == 0 {
		return all, nil
	}
	conn, err := c.Config.New(kafkaTokens)
	if err != nil {
		return nil, &service.UsageError{Err: err}
	}
	ends, err := doctor.Ends(ctx, conn, partitions)
	if err != nil {
		err = fmt.Errorf("ends of logs are not known (without --kafka-brokers they are left out): %w", err)
	}
	for i := range all {
		for j := range all[i].Partitions {
			if end := ends[0]; end >= 0 {
				all[i].Partitions[j].End = &end
			}
			ends = ends[1:]
		}
	}
	return all, err
}
