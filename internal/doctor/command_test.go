package doctor

import (
	"strings"
	"testing"
)

func TestCommand(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"":         "",
		"-k":       "-k",
		"a-b_c.1":  "a-b_c.1",
		"a b":      "'a b'",
		"it's":     `'it'\''s'`,
		"$(rm -r)": "'$(rm -r)'",
		"ü":        "'ü'",
		"\xff'\n":  `$'\xff\x27\x0a'`,
	} {
		want = "relay parked list --outbox=o --schema=s --key=" + want
		if got := Command([]string{"--outbox=o"}, "s", "parked", "list", "--key="+word); got != want {
			t.Errorf("%q: %s, want %s", word, got, want)
		}
	}
	got := Command(nil, "", "parked", "list", "--key=a\x00b", Reason)
	if !strings.HasPrefix(got, "# there is no command") {
		t.Error(got)
	}
}
