package browser

import (
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/effectonce/effectonce/ui"
)

// envDocuments is the variable for the folder of a version of the documents' site, see `make site-seen`.
const envDocuments = "EFFECTONCE_DOCUMENTS"

// pictured are pages of the documents of which `make site-seen` keeps pictures, wide and narrow, light and dark.
var pictured = []string{
	"index.html", "documents.html", "first-hour.html", "guarantees.html", "idempotency.html", "protocol.html",
	"benchmarks.html", "embedding.html", "operations/running.html", "operations/ui.html", "operations/kubernetes.html",
	"platforms/index.html", "runbooks/workers.html", "rules.html", "decisions/index.html",
}

// TestDocuments visits each page of the documents at two widths: nothing on it is wider than the page, each picture is
// there, nothing comes from elsewhere, and the console stays empty.
func TestDocuments(t *testing.T) {
	folder := os.Getenv(envDocuments)
	if folder == "" {
		t.Skip(envDocuments + " names no folder: make site-seen")
	}
	server := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(folder))))
	defer server.Close()
	b := (&site{url: server.URL}).tab(t, "ann", ui.View)
	pages := 0
	err := filepath.WalkDir(folder, func(file string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, ".html") || filepath.Base(file) == "404.html" {
			return err
		}
		pages++
		name, err := filepath.Rel(folder, file)
		b.visitDocument(filepath.Base(folder), filepath.ToSlash(name))
		return err
	})
	sources := 0
	err = errors.Join(err, filepath.WalkDir("../../docs", func(file string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(file, ".md") {
			sources++
		}
		return err
	}))
	if err != nil || pages < sources {
		t.Errorf("%d pages of %d sources, %v", pages, sources, err)
	}
}

func (b *tab) visitDocument(version, name string) {
	b.t.Helper()
	b.open("/" + version + "/" + name)
	for _, size := range [][2]int64{desktop, phone} {
		b.size(size)
		var wide, missing string
		if b.js(overflow, &wide); wide != "" {
			b.t.Errorf("%s at %d: %s", name, size[0], wide)
		}
		b.js(`Promise.all([...document.images].map(i => i.decode().then(() => "", () => i.src)))
			.then(all => all.join(" ").trim())`, &missing)
		if missing != "" {
			b.t.Errorf("%s shows no %s", name, missing)
		}
		if !slices.Contains(pictured, name) {
			continue
		}
		for _, scheme := range []string{"dark", "light"} {
			b.theme(scheme)
			b.keep(strings.ReplaceAll(strings.TrimSuffix(name, ".html"), "/", "-")+"-"+scheme, size)
		}
	}
}

// keep writes a picture of the whole page among the test's artifacts.
func (b *tab) keep(name string, size [2]int64) {
	b.t.Helper()
	shot, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.t.Fatal(err)
	}
	name += map[int64]string{desktop[0]: "-wide.png", phone[0]: "-narrow.png"}[size[0]]
	if err := os.WriteFile(filepath.Join(b.t.ArtifactDir(), name), shot, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// TestDocumentsAreSearched: the search of pages that are opened as files, without a server, finds a page.
func TestDocumentsAreSearched(t *testing.T) {
	folder := os.Getenv(envDocuments)
	if folder == "" {
		t.Skip(envDocuments + " names no folder: make site-seen")
	}
	b := (&site{url: "file://" + folder}).tab(t, "ann", ui.View)
	b.loads("the site as files", chromedp.Navigate(b.site.url+"/index.html"))
	b.awaits("the search", `(() => {
		document.querySelector(".md-search__button").click();
		window.search = [...document.querySelectorAll("body > div")].map(e => e.shadowRoot).find(Boolean);
		return window.search !== undefined && window.search.querySelector("input") !== null;
	})()`)
	b.js(`(() => {
		const input = window.search.querySelector("input");
		input.value = "quarantined";
		input.dispatchEvent(new Event("input", {bubbles: true}));
	})()`, nil)
	b.awaits("pages that the search finds", `window.search.querySelectorAll("[role=listbox] a").length > 1`)
	b.forgive() // the menu of versions: a browser lets no page read another file
}
