package page

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/npm"
)

// awaitTimeout bounds the time that a test waits for the page to show something.
const awaitTimeout = 2 * time.Minute

// chromium is the browser of all tests of this process; TestMain ends it.
var chromium struct {
	ctx context.Context
	end func()
}

func TestMain(m *testing.M) {
	code := m.Run()
	if chromium.end != nil {
		chromium.end()
	}
	os.Exit(code)
}

// browser starts Chromium once.
var browser = sync.OnceValue(func() error {
	path, err := harness.Installed(context.Background(), "chromium")
	if err != nil {
		return err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.DisableGPU)
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocator, endAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, endBrowser := chromedp.NewContext(allocator)
	chromium.ctx, chromium.end = ctx, func() { endBrowser(); endAllocator() }
	return chromedp.Do(ctx)
})

// size is the size of a browser window.
type size struct{ width, height int64 }

var (
	desktop = size{1280, 900}
	phone   = size{390, 844}
)

// tab is a tab of the browser that shows a page.
type tab struct {
	*testing.T
	ctx context.Context

	mu       sync.Mutex
	problems []string // errors of the console, and requests to other hosts
}

// open opens a page in a tab with its own cookies and storage. At its end the test fails if the console has
// an error, or if the page has sent a request to another host.
func open(t *testing.T, address string, window size) *tab {
	t.Helper()
	if err := browser(); err != nil {
		t.Fatal(err)
	}
	own, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	b := &tab{T: t}
	ctx, end := chromedp.NewContext(chromium.ctx, chromedp.WithNewBrowserContext(),
		chromedp.WithListener(func(event any) { b.record(event, own.Host) }))
	t.Cleanup(end)
	b.ctx = ctx
	if err := chromedp.Do(ctx); err != nil { // the tab lives as long as this context
		t.Fatal(err)
	}
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "light"},
		{Name: "prefers-reduced-motion", Value: "reduce"}}
	media := emulation.SetEmulatedMediaParams{Features: features}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, media); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.EmulateViewport(window.width, window.height), chromedp.Navigate(address))
	t.Cleanup(func() {
		for _, problem := range b.recorded() {
			t.Error(problem)
		}
	})
	return b
}

// record stores the problem that an event of the browser reports.
func (b *tab) record(event any, own string) {
	problem := ""
	switch event := event.(type) {
	case *runtime.EventExceptionThrown:
		text, _ := json.Marshal(event.ExceptionDetails)
		problem = "exception: " + string(text)
	case *runtime.EventConsoleAPICalled:
		if event.Type != runtime.ConsoleAPICalledTypeLog {
			text, _ := json.Marshal(event.Args)
			problem = "console: " + string(text)
		}
	case *log.EventEntryAdded:
		if event.Entry.Level == log.EntryLevelError || event.Entry.Level == log.EntryLevelWarning {
			problem = "console: " + event.Entry.Text + " " + event.Entry.URL
		}
	case *network.EventRequestWillBeSent:
		asked, err := url.Parse(event.Request.URL)
		if err != nil || asked.Scheme != "data" && asked.Host != own {
			problem = "a request to another host: " + event.Request.URL
		}
	case *page.EventJavascriptDialogOpening:
		problem = "a dialog: " + event.Message
	}
	if problem != "" {
		b.mu.Lock()
		b.problems = append(b.problems, problem)
		b.mu.Unlock()
	}
}

func (b *tab) recorded() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.problems)
}

// allowProblem removes the problems that contain a text, which the test has provoked.
func (b *tab) allowProblem(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = slices.DeleteFunc(b.problems, func(p string) bool { return strings.Contains(p, text) })
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	result(b, chromedp.Steps(steps...))
}

func result[T any](b *tab, action chromedp.Action[T]) T {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, awaitTimeout)
	defer cancel()
	returned, err := chromedp.Run(ctx, action)
	if err != nil {
		b.Fatal(err)
	}
	return returned
}

// value returns the value of a JavaScript expression.
func value[T any](b *tab, expression string) T {
	b.Helper()
	return result(b, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// text returns the text that an element shows.
func (b *tab) text(selector string) string {
	b.Helper()
	return value[string](b, fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector))
}

// await waits until an element shows a text.
func (b *tab) await(selector, text string) {
	b.Helper()
	shown := ""
	for end := time.Now().Add(awaitTimeout); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if shown = b.text(selector); strings.Contains(shown, text) {
			return
		}
	}
	b.Fatalf("%s shows %q, want %q; the console: %q", selector, shown, text, b.recorded())
}

// fill types a text into a field.
func (b *tab) fill(selector chromedp.CSS, text string) {
	b.Helper()
	b.do(chromedp.Clear(selector), chromedp.SendKeys(selector, text))
}

// ask submits the form that explains a refusal.
func (b *tab) ask() {
	b.Helper()
	b.do(chromedp.Click(chromedp.CSS("#why-form button"), chromedp.NodeVisible))
}

// auditAccessibility returns the violations that axe-core finds, except for minor ones.
func (b *tab) auditAccessibility() []string {
	b.Helper()
	modules, err := npm.Modules(b.Context(), "../../.cache/npm", "axe-core@4.14.1")
	if err != nil {
		b.Fatal(err)
	}
	script, err := os.ReadFile(filepath.Join(modules, "axe-core", "axe.min.js"))
	if err != nil {
		b.Fatal(err)
	}
	type found struct {
		Passes []struct {
			ID string `json:"id"`
		} `json:"passes"`
		Violations []struct {
			ID     string `json:"id"`
			Impact string `json:"impact"`
			Help   string `json:"help"`
			Nodes  []struct {
				HTML           string `json:"html"`
				FailureSummary string `json:"failureSummary"`
			} `json:"nodes"`
		} `json:"violations"`
	}
	value[int](b, string(script)+"; 0")
	report := value[found](b, "axe.run()")
	if n := len(report.Passes); n < 15 { // an open dialog would hide the rest of the page
		b.Errorf("axe-core passed %d rules, want at least 15", n)
	}
	var violations []string
	for _, v := range report.Violations {
		text := v.ID + ", " + v.Impact + ": " + v.Help + ": " + v.Nodes[0].HTML + ": " +
			v.Nodes[0].FailureSummary
		if v.Impact == "minor" {
			b.Log(text)
		} else {
			violations = append(violations, text)
		}
	}
	return violations
}
