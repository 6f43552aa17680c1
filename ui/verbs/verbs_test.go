package verbs_test

import (
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/ui/verbs"
)

// A form with the flags that a command shows means the same as the command.
func TestFlagsMakeTheForm(t *testing.T) {
	t.Parallel()
	at := verbs.OfPartition{Topic: "payments"} // partition 0, which is not the default
	of := verbs.OfOperation{Tenant: "acme", Operation: "payment.create", Key: "k"}
	named := verbs.OfOperation{Operation: "payment.create"}
	key := verbs.ParkedKey{Tenant: "acme", Topic: "payments", Key: "a=b"}
	one, none := "k", ""
	for want, v := range map[string]any{
		"--topic=payments --partitions=12 --anyway": verbs.AcceptPartitions{
			Topic: "payments", Partitions: 12, Anyway: true,
		},
		"--topic=payments --message-id=m": verbs.DiscardHeld{Topic: "payments", MessageID: "m"},
		"--seq=7 --due=d":                 verbs.CancelScheduled{Seq: 7, Due: "d"},
		"--topic=reminders":               verbs.CancelAllScheduled{Topic: "reminders"},
		"--topic=reminders --key=k --tenant=": verbs.CancelAllScheduled{
			Topic: "reminders", Key: &one, Tenant: &none,
		},
		"--topic=payments --partition=0":           verbs.ResumePartition{OfPartition: at},
		"--topic=payments --partition=0 --to=0":    verbs.SkipRecords{OfPartition: at},
		"--operation=payment.create --all":         verbs.RetryOperation{OfOperation: named, All: true},
		"--tenant=acme --topic=payments --key=a=b": verbs.ReleaseParked{ParkedKey: key},
		"--id=5": verbs.DiscardParked{ID: 5},
		"--tenant=acme --operation=payment.create --key=k --code=201 --body=answer.json": verbs.CompleteOperation{
			OfOperation: of, Code: 201, Body: "answer.json", ContentType: "application/json",
		},
		"": verbs.Retire{},
	} {
		flags := verbs.Flags(v)
		if got := strings.Join(flags, " "); got != want {
			t.Errorf("%T: %s, want %s", v, got, want)
		}
		form := url.Values{}
		for _, flag := range flags {
			name, value, valued := strings.Cut(flag[2:], "=")
			if !valued {
				value = "1"
			}
			form.Set(name, value)
		}
		back := reflect.New(reflect.TypeOf(v))
		if err := verbs.Read(back.Interface(), form); err != nil || !reflect.DeepEqual(back.Elem().Interface(), v) {
			t.Errorf("%T: read %+v, want %+v: %v", v, back.Elem(), v, err)
		}
	}
}

// What is blank is not given, and only 1 is a yes: partition 0 of a blank field would be another one than was meant.
func TestReadTakesNothingForGiven(t *testing.T) {
	t.Parallel()
	var p verbs.ResumePartition
	if err := verbs.Read(&p, url.Values{"topic": {"t"}, "partition": {""}}); err != nil || p.Partition != -1 {
		t.Errorf("a blank partition is %d, %v", p.Partition, err)
	}
	for text, sure := range map[string]bool{"": false, "1": true, "no": false, "0": false, "false": false} {
		var v verbs.FreeOperation
		err := verbs.Read(&v, url.Values{"key": {"k"}, "sure": {text}})
		if v.Sure != sure || (err == nil) != (text == "" || sure) {
			t.Errorf("sure=%s is %v, %v", text, v.Sure, err)
		}
	}
}

func TestReadRefusesWhatIsNoNumber(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"x", "1.5", "9999999999", " 1"} {
		var v verbs.ResumePartition
		if err := verbs.Read(&v, url.Values{"topic": {"t"}, "partition": {text}}); err == nil {
			t.Errorf("partition %q is read as %d", text, v.Partition)
		}
	}
}

// A field that no form can give a value is found when the verb is first used, not when somebody sends one.
func TestOtherFieldsPanic(t *testing.T) {
	t.Parallel()
	for _, v := range []any{
		struct{ N uint }{},
		struct{ F float64 }{},
		struct{ L []string }{},
		struct{ P *int }{},
		struct{ D time.Duration }{},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%T has flags", v)
				}
			}()
			verbs.Flags(v)
		}()
	}
}

func TestIncompleteVerbsAreRefused(t *testing.T) {
	t.Parallel()
	at, key := verbs.OfPartition{Topic: "t"}, verbs.OfOperation{Key: "k"}
	for want, refusal := range map[string]error{
		"--topic is missing":       verbs.PauseTopic{}.Verb().Refusal,
		"--topic: a b is no topic": verbs.CancelAllScheduled{Topic: "a b"}.Verb().Refusal,
		"is no topic's name":       verbs.ResumeTopic{Topic: "a,b"}.Verb().Refusal,
		"at least 1":               verbs.AcceptPartitions{Topic: "t"}.Verb().Refusal,
		"--cluster is missing":     verbs.AcceptCluster{}.Verb().Refusal,
		"no cluster's id":          verbs.AcceptCluster{Cluster: strings.Repeat("x", 201)}.Verb().Refusal,
		"--message-id or --all":    verbs.DiscardHeld{Topic: "t"}.Verb().Refusal,
		"want a UUID":              verbs.DiscardHeld{Topic: "t", MessageID: "x"}.Verb().Refusal,
		"--seq is missing":         verbs.CancelScheduled{Due: "2026-01-02T15:04:05Z"}.Verb().Refusal,
		"--due wants the time":     verbs.CancelScheduled{Seq: 1}.Verb().Refusal,
		"--topic and --partition":  verbs.ResumePartition{}.Verb().Refusal,
		"which offset is handled":  verbs.SkipRecords{OfPartition: at, To: -1}.Verb().Refusal,
		"--epoch is missing":       verbs.AcceptNumbering{}.Verb().Refusal,
		"watermark or offset":      verbs.MoveConsumer{To: "id"}.Verb().Refusal,
		"neither --key nor":        verbs.RetryOperation{OfOperation: key, All: true}.Verb().Refusal,
		"is not JSON": verbs.CompleteOperation{
			OfOperation: verbs.OfOperation{Operation: "o", Key: "k"}, Code: 201, Answer: []byte(`{"a":`),
			ContentType: "application/json; charset=utf-8",
		}.Verb().Refusal,
		"--sure is missing":         verbs.FreeOperation{}.Verb().Refusal,
		"name what is meant: a key": verbs.ReleaseParked{ParkedKey: verbs.ParkedKey{Topic: "t"}}.Verb().Refusal,
	} {
		if refusal == nil || !strings.Contains(refusal.Error(), want) {
			t.Errorf("want %q: %v", want, refusal)
		}
	}
}
