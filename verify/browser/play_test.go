package browser

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/ui"
)

// playing starts the demo with its page, and returns where that is.
func playing(t *testing.T) *site {
	t.Helper()
	// Under root, Postgres runs as another account, which has no access to t.TempDir.
	tmp, err := os.MkdirTemp("", "effectonce-play-")
	if err == nil {
		err = os.Chmod(tmp, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	program := filepath.Join(tmp, "demo")
	if text, err := exec.Command("go", "build", "-o", program, "../../examples/demo").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	demo := exec.Command(program, "--keep", "--payments=20", "--rate=100", "--listen=127.0.0.1:0")
	demo.Env = append(os.Environ(), "TMPDIR="+tmp)
	demo.Stderr = os.Stderr
	out, err := demo.StdoutPipe()
	if err == nil {
		err = demo.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = demo.Process.Signal(os.Interrupt)
		_ = demo.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "downloading Postgres") {
			t.Skip("Postgres is not there yet: go run ./examples/demo fetches it")
		}
		if _, url, ok := strings.Cut(lines.Text(), "the page is at "); ok {
			go func() { // it must not stop at a full pipe
				for lines.Scan() {
				}
			}()
			return &site{url: strings.TrimSuffix(url, "/")}
		}
	}
	t.Fatal("the demo has ended without a page")
	return nil
}

// TestPlay: whatever is pressed on the demo's page, each payment gets one ledger pair and one mail, or is parked; and
// the page says so.
func TestPlay(t *testing.T) {
	t.Parallel()
	s := playing(t)
	b := s.tab(t, "ann", ui.Operate)
	b.open("/")
	count := func(id string) (n int) {
		t.Helper()
		b.js("Number(document.getElementById("+quote(id)+").textContent)", &n)
		return n
	}
	settled := func() {
		t.Helper()
		b.awaits("what was pressed is done, and all is counted", `!document.querySelector("[data-do=pay]").disabled &&
			document.getElementById("verdict").className === "ok"`)
	}
	settled()
	for _, press := range []struct {
		button, says             string
		payments, records, pairs int // how many more there are then; records: at least
	}{
		{"pay", "", 1, 1, 1},
		{"pay-twice", "got the first answer", 1, 1, 1},
		{"deliver-again", "the inboxes know their ids", 0, 3, 0},
		{"kill-ledger", "died before COMMIT", 1, 1, 1},
		{"kill-relays", "both relays are dead", 3, 3, 3},
		{"freeze", "it is parked", 1, 1, 0},
		{"thaw", "the account is open again", 0, 0, 1},
		{"kafka", "Kafka is away", 0, 0, 0}, // the next row has its payment
		{"kafka", "Kafka is back", 1, 1, 1},
	} {
		payments, records, pairs := count("payments"), count("records"), count("pairs")
		if press.says == "Kafka is back" {
			payments--
		}
		b.awaits("the button "+press.button, `!document.querySelector("[data-do=`+press.button+`]").disabled`)
		b.click("[data-do=" + press.button + "]")
		if press.says != "" {
			b.awaitsText(press.says)
		}
		if press.says == "Kafka is away" {
			b.awaitsText("On their way: 1 payment")
			continue
		}
		b.awaits(press.button+" is counted", fmt.Sprintf(`Number(document.getElementById("payments").textContent) === %d &&
			Number(document.getElementById("pairs").textContent) === %d`, payments+press.payments, pairs+press.pairs))
		settled()
		if p, r, e := count("payments")-payments, count("records")-records, count("pairs")-pairs; p != press.payments ||
			r < press.records || e != press.pairs {
			t.Errorf("%s: %d payments, %d records and %d pairs more, want %+v", press.button, p, r, e, press)
		}
	}
	b.awaitsText("records too many")
	if dir := os.Getenv(envScreenshots); dir != "" {
		b.picture(dir, "play")
	}
	b.examine("the demo's page")
	b.js(`window.fetch = async () => ({ok: true, json: async () => ({Parts: [], Payments: [{Account: "a", Entries: 4}],
		Counts: {Payments: 2, Records: 2, Pairs: 2, Mails: 2, Parked: 0, Wrong: 2}})})`, nil)
	b.awaitsText("Wrong: 2 payments not booked or mailed exactly once.") // one twice, one not at all
	b.awaitsText("booked 2 times!")
	b.open("/operate/consumers")
	b.awaitsText("ledger")
}
