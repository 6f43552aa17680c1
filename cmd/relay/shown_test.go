package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/ui/verbs"
)

// TestShownCommandsSayWhatTheyDo: what a shell and the command line make of a shown command is the verb of the page.
func TestShownCommandsSayWhatTheyDo(t *testing.T) {
	t.Parallel()
	for _, odd := range []string{"-k", "--all", "=a=b,c", "~ it's \"$(id)\" `id` !1 # \\", "ü\xff\n\x01"} {
		key := verbs.ParkedKey{Tenant: odd, Topic: odd, Key: odd, Head: 7, Most: 3}
		of := verbs.OfOperation{Tenant: odd, Operation: odd, Key: odd}
		shownVerb(t, verbs.ReleaseParked{ParkedKey: key})
		shownVerb(t, verbs.DiscardParked{ParkedKey: key})
		shownVerb(t, verbs.CancelAllScheduled{Topic: odd, Key: &odd, Tenant: new(string)})
		shownVerb(t, verbs.PauseTopic{Topic: odd})
		shownVerb(t, verbs.AcceptCluster{Cluster: odd})
		shownVerb(t, verbs.AcceptNumbering{Epoch: odd})
		shownVerb(t, verbs.SkipRecords{OfPartition: verbs.OfPartition{Topic: odd}, To: 1})
		shownVerb(t, verbs.CompleteOperation{
			OfOperation: of, Code: 201, Resource: odd, Body: odd, ContentType: odd, Failure: odd,
		})
		shownVerb(t, verbs.FreeOperation{OfOperation: of, Sure: true})
	}
}

// TestShownCommandsNameTheOutbox: in whatever folder they are run.
func TestShownCommandsNameTheOutbox(t *testing.T) {
	t.Parallel()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	d := database{manyOutboxes: manyOutboxes{file: "relay.yaml"}}
	file := "--config=" + filepath.Join(here, "relay.yaml")
	if got := d.where(); !slices.Equal(got, []string{file}) {
		t.Errorf("without a list: %q", got)
	}
	d.Discover = "select name from tenants"
	want := []string{file, "--discover=" + d.Discover, "--outbox=one"}
	if got := d.of(namedOutbox{name: "one"}).where(); !slices.Equal(got, want) {
		t.Errorf("of a list: %q, want %q", got, want)
	}
}

func shownVerb[O any](t *testing.T, v verbs.Of[O]) {
	t.Helper()
	args := append(strings.Fields(v.Verb().Command), verbs.Flags(v)...)
	shown := doctor.Command([]string{"--outbox=o"}, "-s", append(args, doctor.Reason)...)
	out, err := exec.CommandContext(t.Context(), "bash", "-c", `relay() { printf '%s\0' "$@"; }; `+shown).Output()
	if err != nil {
		t.Fatalf("%s: %v", shown, err)
	}
	line := service.CommandLine{Name: "relay", Prefix: "RELAY_", Env: environment{}.get, List: outboxList}
	parsed, err := line.Parse(&cli{}, strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"), io.Discard,
		io.Discard)
	if err != nil {
		t.Errorf("%s: %v", shown, err)
		return
	}
	target := parsed.Selected().Target
	if got := target.FieldByName("Args").Interface(); !reflect.DeepEqual(got, v) ||
		fmt.Sprint(target.FieldByName("Reason")) != "..." || target.Addr().Interface().(runner).base().Schema != "-s" {
		t.Errorf("%s: %+v, want %+v", shown, got, v)
	}
}
