package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
)

// hotKey names the key that most of a partition's next records have. Empty: none has, or this user may not read them.
func hotKey(ctx context.Context, client *kafka.Client, at place, from int64) string {
	res, err := client.Fetch(ctx, &kafka.FetchRequest{
		Topic: at.topic, Partition: at.partition, Offset: from, MinBytes: 1, MaxBytes: 256 << 10, MaxWait: time.Second,
	})
	if err != nil || res.Error != nil {
		return ""
	}
	all, most, key, counts := 0, 0, "", map[string]int{}
	for ; all < 1000; all++ {
		r, err := res.Records.ReadRecord()
		if err != nil { // the last one was read
			break
		}
		b, err := kafka.ReadAll(r.Key)
		if err != nil {
			return ""
		}
		k := string(b)
		if counts[k]++; counts[k] > most && k != "" {
			most, key = counts[k], k
		}
	}
	if 2*most <= all {
		return ""
	}
	return fmt.Sprintf("%d of its next %d have the key %.200q", most, all, key)
}
