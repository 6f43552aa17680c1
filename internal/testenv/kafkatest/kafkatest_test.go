package kafkatest

import (
	"fmt"
	"testing"
)

func TestMain(m *testing.M) { Main(m) }

func TestProduceAndReadAll(t *testing.T) {
	t.Parallel()
	topic := Topic(t, 3, map[string]string{"retention.ms": "-1"})
	if got := ReadAll(t, topic); len(got) != 0 {
		t.Fatalf("an empty topic has %d records", len(got))
	}
	var want []Record
	for i := range 600 {
		want = append(want, Record{
			Partition: int32(i % 2), Key: []byte("k"), Value: fmt.Append(nil, i),
			Headers: []Header{{"a", []byte("b")}},
		})
	}
	want[0].Value = nil // a tombstone
	Produce(t, topic, want...)
	got := ReadAll(t, topic)
	if len(got) != len(want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
	for i, r := range got {
		p, o := int32(i/300), int64(i%300)
		w := want[int(o)*2+int(p)]
		if r.Partition != p || r.Offset != o || string(r.Value) != string(w.Value) || r.Get("a") != "b" ||
			r.Time.IsZero() {
			t.Fatalf("record %d is %+v, want %+v", i, r, w)
		}
	}
	if got[0].Value != nil {
		t.Fatal("the tombstone has a value")
	}
}
