// Package browser tests the pages of ui as people meet them: in a real Chromium, over a real Postgres.
package browser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// envRequire is the variable that has tests fail where there is no Chromium, instead of being skipped: "1".
const envRequire = "EFFECTONCE_REQUIRE_CHROMIUM"

func TestMain(m *testing.M) { pgtest.Main(m, kafkatest.Stop, stopChromium) }

// chromium is this binary's browser. The first test that needs it starts it; each test has a tab.
var chromium struct {
	sync.Mutex
	ctx context.Context
	dir string
}

func startedChromium(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv(envRequire) == "1" {
			t.Fatalf("%v: Debian has it in its package chromium", err)
		}
		t.Skipf("%v: Debian has it in its package chromium", err)
	}
	chromium.Lock()
	defer chromium.Unlock()
	if chromium.ctx != nil {
		return chromium.ctx
	}
	dir, err := os.MkdirTemp("", "effectonce-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path),
		chromedp.UserDataDir(dir),
		chromedp.Env("HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_CACHE_HOME="+dir),
		chromedp.DisableGPU,
		chromedp.Flag("no-sandbox", os.Geteuid() == 0), // Chromium has none for root
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("no-proxy-server", true),
		// Nothing but the tests' own servers has an address.
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"),
		chromedp.WSURLReadTimeout(2*time.Minute),
	)
	allocator, _ := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ := chromedp.NewContext(allocator)
	if err := chromedp.Do(ctx); err != nil {
		_ = os.RemoveAll(dir)
		t.Fatalf("start %s: %v", path, err)
	}
	chromium.ctx, chromium.dir = ctx, dir
	return ctx
}

func stopChromium() {
	chromium.Lock()
	defer chromium.Unlock()
	if chromium.ctx == nil {
		return
	}
	ctx, cancel := context.WithTimeout(chromium.ctx, 30*time.Second)
	defer cancel()
	if err := chromedp.Cancel(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "stop chromium:", err)
	}
	_ = os.RemoveAll(chromium.dir)
}
