package browser

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/ui"
)

// envScreenshots is the variable for the folder that pictures of pages are written into, see `make screenshots`.
const envScreenshots = "EFFECTONCE_SCREENSHOTS"

// mostPicture is how many bytes a picture in the documents may have.
const mostPicture = 100 << 10

// picture writes what the tab shows into a file.
func (b *tab) picture(dir, name string) {
	b.t.Helper()
	b.js(`scrollTo(0, 0); document.activeElement.blur()`, nil)
	shot, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		b.t.Fatal(err)
	}
	var small bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	if err := encoder.Encode(&small, paletted(img)); err != nil {
		b.t.Fatal(err)
	}
	if small.Len() > mostPicture {
		b.t.Errorf("%s has %d bytes", name, small.Len())
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), small.Bytes(), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// paletted is a picture in its 256 most frequent colours, and those nearest to them: a third of the bytes.
func paletted(from image.Image) *image.Paletted {
	counts := map[color.Color]int{}
	area := from.Bounds()
	for y := area.Min.Y; y < area.Max.Y; y++ {
		for x := area.Min.X; x < area.Max.X; x++ {
			counts[from.At(x, y)]++
		}
	}
	frequent := slices.SortedFunc(maps.Keys(counts), func(a, b color.Color) int { return counts[b] - counts[a] })
	to := image.NewPaletted(area, frequent[:min(len(frequent), 256)])
	nearest := map[color.Color]uint8{}
	for c := range counts {
		nearest[c] = uint8(to.Palette.Index(c))
	}
	for y := area.Min.Y; y < area.Max.Y; y++ {
		for x := area.Min.X; x < area.Max.X; x++ {
			to.SetColorIndex(x, y, nearest[from.At(x, y)])
		}
	}
	return to
}

// TestScreenshots makes the pictures of docs/operations/ui.md.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv(envScreenshots)
	if dir == "" {
		t.Skip(envScreenshots + " names no folder: make screenshots")
	}
	orders, ledger := outboxInTrouble(t), inboxInTrouble(t)
	s := serve(t, ui.Config{}, ui.Database{Name: "orders", Pool: orders.Pool},
		ui.Database{Name: "ledger", Pool: ledger.Pool})
	b := s.tab(t, "ann", ui.Operate)
	// The plots need a past.
	pgtest.Await(t, "plots", func() (bool, error) {
		orders.Exec(t, `insert into outbox_event (topic, key, type) values ('payments', 'k', 'PaymentAccepted')`)
		b.open("/")
		var points int
		b.js(`document.querySelector(".plot polyline")?.points.length || 0`, &points)
		return points > 4, nil
	})
	b.awaitsText("checks are as they should be")
	b.picture(dir, "overview")
	b.theme("dark")
	b.picture(dir, "overview-dark")
	b.open("/consumers")
	b.picture(dir, "consumers-dark")
	b.theme("light")
	b.open("/keys")
	b.click("details:has(form[action$='/release']) summary")
	b.fill("details[open] input[name=reason]", "the limit of the topic is 4 MiB now")
	b.picture(dir, "keys")
	b.open("/")
	b.size(phone)
	b.picture(dir, "phone")
	b.size(desktop)
	b.open(eventPath(pgtest.One[int64](t, orders, "select min(id) from outbox_parked")))
	b.reveal()
	b.picture(dir, "event")
}
