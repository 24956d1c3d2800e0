package page

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// markup is a name that would load a picture and run a script, if the page took it for HTML.
const markup = `<img src=x onerror=alert(1)><b>`

// moneySQL adds prices, a notice, and the costs of today of 60 people below an organization and a team, and
// of an unknown sender, with corrections that add up to 0.
//
//go:embed testdata/money.sql
var moneySQL string

// The page shows what was spent, by whom and on which model, with names as they are, and what has no price.
// It is accessible, and not wider than the window, in light and dark.
func TestThePageShowsWhatWasSpent(t *testing.T) {
	dsn := cluster.Open(t, schema.File, fmt.Sprintf(moneySQL, markup))
	b := openPage(t, dsn, dsn)
	b.await("#money-list dl", "1,930.50 EUR")
	text := b.text("#money-list")
	for _, want := range []string{"This month has 0.50 EUR of estimates",
		"requests of this month: " + markup + " (1).", "orbit", "blue", markup + "-team", "p60", "12 other",
		"unknown"} {
		if !strings.Contains(text, want) {
			t.Errorf("the money shows %q, want also %q", text, want)
		}
	}
	b.await("#state-more", `The price "gpt-4o*" has charged search without a price of its own`)
	b.await("#prices-list", "audio_input=40, flex=0.5")
	b.await("#notices-list", "40.25 of 50")
	b.await("#corrections-list", markup+"-why")
	b.await("#corrections-list", "2026-10")
	b.await("#corrections-list", "and 10 more")
	for name, look := range map[string]struct {
		size
		scheme string
	}{"light": {desktop, "light"}, "dark": {desktop, "dark"}, "phone": {phone, "light"}} {
		features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look.scheme}}
		if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia,
			emulation.SetEmulatedMediaParams{Features: features}); err != nil {
			t.Fatal(err)
		}
		b.do(chromedp.EmulateViewport(look.width, look.height))
		for _, found := range b.auditAccessibility() {
			t.Error(name, found)
		}
		if wide := value[int64](b, "document.documentElement.scrollWidth"); wide > look.width {
			t.Errorf("%s: the page is %d pixels wide, want %d at most", name, wide, look.width)
		}
	}
}
