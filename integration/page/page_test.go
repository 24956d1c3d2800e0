package page

import (
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

var pictures = flag.String("pictures", "", "a folder: TestEachStateIsShown puts pictures of all states there, and another test those of the documentation")

// states are those of the fake, with what the banner says of each.
var states = []struct {
	name     string
	sections func() object
	banner   string
}{
	{"idle", idle, "Enforcing"}, {"busy", busy, "Enforcing"}, {"attacked", attacked, "Failing open"}, {"local", local, "Local limits"}, {"recovering", recovering, "Recovering"}, {"down", down, "Database down"}, {"hostile", hostile, "Enforcing"},
}

// In each state, dark on a wide window and light on a narrow one: axe-core finds nothing but what is minor, nothing is wider than the window,
// and the console has no error.
func TestEachStateIsShown(t *testing.T) {
	for _, state := range states {
		for _, window := range []size{desktop, phone} {
			name, dark := fmt.Sprintf("%s-%d", state.name, window.width), window == desktop
			t.Run(name, func(t *testing.T) {
				b := open(t, serve(t, state.sections()).URL+"/", window, dark)
				b.await("#state", state.banner)
				if state.name == "local" {
					b.await("#proxies-list", "limits by itself since 14:04:42 UTC, at its share of each limit")
					b.await("#proxies-list", "has limited by itself from 13:15:03 UTC to 13:17:03 UTC.")
					b.click("#limits-count")
					b.await("#limits-list", "tokens: 100,000 in 1h for each {header.X-Tenant}, sliding_window, shadow, on_error local, settle json usage.total_tokens; in edge-1")
					b.await("#limits-list", "5 in flight for each {client_ip}, in_flight, enforce, on_error allow; 12 in flight now, of all keys; in edge-1")
				}
				if state.name == "down" {
					b.await("#state", "Database down: without it, requests pass")
					b.await("#figures", "without it: 3 proxies")
					b.await("#figures", "Newest policy\nnot known")
					b.await("#state-more", "The error is: connection refused. In full: failed to connect")
				}
				b.fill("#why-who", "ann")
				b.click("#why-form button")
				b.await("#why-answer", "Plan")
				if wide := value[int64](b, "document.documentElement.scrollWidth"); wide > window.width {
					t.Errorf("the page is %d pixels wide", wide)
				}
				for _, found := range b.axe() {
					t.Error(found)
				}
				if *pictures != "" {
					value[bool](b, "scrollTo(0, 0), document.activeElement.blur(), true")
					b.picture(filepath.Join(*pictures, name+".png"), chromedp.FullScreenshot(100))
				}
			})
		}
	}
}

// A text from a request never becomes HTML, a script or a picture, and none changes the order of the letters around it.
func TestHostileTextsAreInert(t *testing.T) {
	b := open(t, serve(t, hostile()).URL+"/", desktop, false)
	b.await("#top-keys", "<script>alert(1)</script>")
	b.fill("#why-who", "ann")
	b.click("#why-form button")
	b.await("#why-said", "<img src=x onerror=alert(2)>")
	b.await("#proxies-list", "<script>")
	b.inert()
	if text := value[string](b, "document.body.innerText"); strings.ContainsAny(text, "\u202e\u202c\u0000\u200b\u2066") || !strings.Contains(text, `\u202e`) {
		t.Error("characters that cannot be seen are not shown as such")
	}
}

// inert checks that no text of the page has become an element that does something.
func (b *tab) inert() {
	b.Helper()
	if made := value[string](b, `[...document.querySelectorAll('body script, body img, iframe, object, [onerror], [onload], a[href^=javascript]')].map((e) => e.outerHTML).join()`); made != "" {
		b.Errorf("the page has made %s", made)
	}
}

// A page whose server is gone, or hangs, is not green for more than two seconds.
func TestThePageIsNotGreenWithoutItsServer(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, f *fake){
		"gone":  func(_ *testing.T, f *fake) { f.Listener.Close(); f.CloseClientConnections() },
		"hangs": func(t *testing.T, f *fake) { f.mu.Lock(); t.Cleanup(f.mu.Unlock) },
	} {
		t.Run(name, func(t *testing.T) {
			f := serve(t, busy())
			b := open(t, f.URL+"/", phone, false)
			b.await("#state", "Enforcing")
			value[bool](b, `(() => {
				const banner = document.querySelector('#banner');
				window.green = Date.now(); // when the page last showed a state as known after an answer
				new PerformanceObserver((list) => { for (const e of list.getEntries()) if (e.responseStatus === 200) window.green = performance.timeOrigin + e.responseEnd; }).observe({ type: 'resource' });
				window.lost = null;
				let last = window.green;
				window.late = 0; // how late a busy browser is for what it does 50 times a second
				setInterval(() => {
					window.late = Math.max(window.late, Date.now() - last - 20);
					last = Date.now();
					if (window.lost === null && banner.dataset.state === 'wait') window.lost = last;
				}, 20);
				return true;
			})()`)
			lose(t, f)
			b.await("#state", "No connection")
			if took, late := value[float64](b, "window.lost - window.green"), value[float64](b, "window.late"); took > 2500+2*late {
				t.Errorf("the page is green for %.0f ms after the last answer, and the browser was %.0f ms late at most", took, late)
			}
			b.forgive("ERR_CONNECTION_REFUSED")
			b.forgive("ERR_EMPTY_RESPONSE")
		})
	}
}

// The state and the proxies are in the page that the server sends, before a script runs.
func TestThePageNeedsNoScriptForTheState(t *testing.T) {
	b := open(t, "about:blank", phone, false)
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		t.Fatal(err)
	}
	f := serve(t, attacked())
	b.do(chromedp.Navigate(f.URL + "/"))
	for selector, want := range map[string]string{"#state": "Failing open", "#figures": "310/s", "#proxies-list": "traefik-1", "main": "Without scripts, this page changes nothing", "#top-rules": "600"} {
		b.await(selector, want)
	}
	b.do(chromedp.SetValue(chromedp.CSS("#since"), "1h"))
	b.click("#since-form button")
	f.awaitAsked(b, "?since=1h")
	b.problems = nil // the blank page is of no host
}

// On a phone, nothing moves once it is shown, whatever the next answers are, and "Why" follows the state.
func TestNothingMovesOnAPhone(t *testing.T) {
	for name, from := range map[string]func() object{"from idle to busy": idle, "from busy to idle": busy} {
		t.Run(name, func(t *testing.T) {
			s := from()
			f := serve(t, s)
			b := open(t, f.URL+"/", phone, false)
			b.await("#state", "Enforcing")
			if second := value[string](b, "document.querySelectorAll('main > section')[1].id"); second != "why" {
				t.Errorf("the second section is %s", second)
			}
			value[bool](b, "(() => { window.tops = () => [...document.querySelectorAll('section, h3')].filter((e) => e.checkVisibility()).map((e) => (e.id || e.textContent.slice(0, 20)) + ' ' + Math.round(e.getBoundingClientRect().top + scrollY)).join(' | '); window.before = window.tops(); return true })()")
			other := busy()
			if name == "from busy to idle" {
				other = idle()
			}
			for _, section := range []string{"traffic", "top", "near", "limits", "changes"} {
				if section != "limits" {
					f.change(section, other[section])
				}
			}
			want := "rule free: per_hour"
			if name == "from busy to idle" {
				want = "The policy did not change in this hour."
			}
			b.await(".box.marks", want)
			if moved := value[bool](b, "window.before !== window.tops()"); moved {
				t.Errorf("it has moved: from %s to %s", value[string](b, "window.before"), value[string](b, "window.tops()"))
			}
			const shifts = "new Promise((resolve) => { const all = []; new PerformanceObserver((list) => { for (const e of list.getEntries()) if (!e.hadRecentInput && e.value > 0.001) all.push(e.value + ' by ' + e.sources.map((s) => (s.node?.outerHTML ?? s.node?.data)?.slice(0, 60) + ' ' + s.previousRect.y + ' ' + s.currentRect.y)); }).observe({ type: 'layout-shift', buffered: true }); setTimeout(() => resolve(all), 300) })"
			for _, shift := range value[[]string](b, shifts) {
				t.Errorf("Chromium has seen a shift of %s", shift)
			}
		})
	}
}

// An outage is marked in the lines, and below them with how many requests passed.
func TestAnOutageIsMarkedInTheLines(t *testing.T) {
	b := open(t, serve(t, recovering()).URL+"/", desktop, false)
	b.await("#state", "Recovering")
	b.await("#state-more", "1,620 requests passed without a decision from 13:50 to 13:53 UTC.")
	b.await("#changes", "Outage: 1,620 requests passed without a decision")
	if drawn := value[int](b, "[...document.querySelectorAll('.pane .outages')].filter((p) => p.getAttribute('d').length > 0 && p.getBoundingClientRect().width > 20).length"); drawn != 3 {
		t.Errorf("%d of 3 lines have the outage", drawn)
	}
}

// A reader who knows when something was deployed chooses this time.
func TestTheListsAreOfAnyTimeOfADay(t *testing.T) {
	f := serve(t, busy())
	b := open(t, f.URL+"/", phone, false)
	b.await("#since", "a time of the last 24 hours")
	choose := func(selector, value string) {
		t.Helper()
		b.do(chromedp.SetValue(chromedp.CSS(selector), value))
		_ = result(b, chromedp.Evaluate[bool](fmt.Sprintf("document.querySelector(%q).dispatchEvent(new Event('change'))", selector)))
	}
	choose("#since", "time")
	if focus := value[string](b, "document.activeElement.id"); focus != "since-time" {
		t.Errorf("%s has the focus, want the time", focus)
	}
	choose("#since-time", "13:30")
	f.awaitAsked(b, "?since=2026-11-21T13%3A30%3A00.000Z")
	choose("#since-time", "14:30") // is to come
	f.awaitAsked(b, "?since=2026-11-20T14%3A30%3A00.000Z")
	choose("#since", "24h")
	f.awaitAsked(b, "?since=24h")
	if shown := value[bool](b, "document.querySelector('#since-time').checkVisibility()"); shown {
		t.Error("the time is still shown")
	}
}

// What a user gets more of is chosen among its own limits, once they are known. An override can be taken back later.
func TestMoreIsGivenOfALimitOfTheUser(t *testing.T) {
	s := busy()
	s["why"].(object)["user"].(object)["overrides"] = []object{{"rule": "free", "limit": "per_hour", "key_id": nil, "events": 1100, "burst": nil, "valid_from": nil, "valid_until": at.Add(time.Hour), "reason": "a sale"}}
	f := serve(t, s)
	b := open(t, f.URL+"/", desktop, false)
	b.await("#state", "Enforcing")
	b.fill("#form-override [name=who]", "ann"+kb.Enter)
	if shown := value[bool](b, "document.querySelector('#ask').open"); shown {
		t.Error("it asks before the limits of the user are known")
	}
	b.await("#form-override [name=limit]", "free/per_hour: now 1,000")
	b.fill("#why-who", "ann")
	b.click("#why-form button")
	b.await("#why-answer", "a sale Take back")
	b.click("#why-answer .facts button")
	b.await("#ask[open]", "Cancel")
	b.fill("#ask-by", "nora")
	b.click("#ask-yes")
	f.awaitAsked(b, `api/unoverride {"by":"nora","confirm":"c","limit":"per_hour","rule":"free","user":"ann"}`)
	b.await("#why-outcome", "All limits are paused until 15:05:03 UTC.\nEnd the pause")
}

// An action is asked twice, and has a way back, with the keyboard alone.
func TestAnActionIsAskedTwice(t *testing.T) {
	f := serve(t, busy())
	b := open(t, f.URL+"/", desktop, false)
	b.await("#state", "Enforcing")
	b.fill("#form-pause [name=reason]", "outage"+kb.Enter)
	b.await("#ask[open]", "Pause all limits of this database")
	b.press("ann" + kb.Escape)
	b.await("#done-none", "Nothing yet.")
	b.press(kb.Enter)
	b.await("#ask[open]", "Bans and block rules hold.")
	for _, found := range b.axe() {
		t.Error(found)
	}
	if focus := value[string](b, "document.activeElement.id"); focus != "ask-no" {
		t.Errorf("%s has the focus, want the button that cancels", focus)
	}
	b.press(kb.Tab + kb.Enter)
	b.await("#done", "All limits are paused until 15:05:03 UTC.")
	b.await("#done", "End the pause")
	b.await("#form-pause .outcome", "All limits are paused until 15:05:03 UTC.")
	b.await("#form-pause .outcome button", "End the pause")
	f.mu.Lock()
	defer f.mu.Unlock()
	const asked = `api/pause {"for":"10m","reason":"outage"}`
	if len(f.asked) != 3 || f.asked[0] != asked || f.asked[1] != asked || f.asked[2] != `api/pause {"by":"ann","confirm":"c","for":"10m","reason":"outage"}` {
		t.Errorf("the page has asked %q", f.asked)
	}
}

// Without a name, the page asks for one beside the question, and remembers it over a reload. A name in the form of the log
// is not taken.
func TestTheNameIsAskedForOnce(t *testing.T) {
	f := serve(t, busy())
	b := open(t, f.URL+"/", phone, false)
	b.await("#state", "Enforcing")
	b.click("#form-pause button")
	b.await("#ask[open]", "Your name, for the log of changes")
	for _, found := range b.axe() {
		t.Error(found)
	}
	if focus := value[string](b, "document.activeElement.id"); focus != "ask-by" {
		t.Errorf("%s has the focus, want the name", focus)
	}
	b.press("a (b)" + kb.Enter)
	if asked := value[bool](b, "document.querySelector('#ask').open"); !asked {
		t.Error("a name with parentheses is taken")
	}
	value[bool](b, "document.querySelector('#ask-by').select(), true")
	b.press("nora")
	b.click("#ask-no")
	b.do(chromedp.Reload())
	b.await("#state", "Enforcing")
	b.click("#form-pause button")
	b.await("#ask[open]", "Pause all limits of this database")
	b.click("#ask-yes")
	f.awaitAsked(b, `api/pause {"by":"nora","confirm":"c","for":"10m","reason":""}`)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.asked) != 3 {
		t.Errorf("the page has asked %q, want three questions", f.asked)
	}
}

// After an action, the figures beside it are those of now.
func TestFiguresAreOfNowAfterAnAction(t *testing.T) {
	f := serve(t, busy())
	b := open(t, f.URL+"/", phone, false)
	b.await("#state", "Enforcing")
	b.fill("#form-override [name=who]", "ann\t")
	b.await("#form-override [name=limit]", "free/per_hour: now 1,000")
	b.fill("#why-who", "ann")
	b.click("#why-form button")
	b.await("#why-said", "As of 14:05:0")
	b.await("#why-said", "Now, GET / would be refused with status 429")
	f.mu.Lock()
	limit := f.sections["why"].(object)["next"].(object)["explanation"].(object)["limits"].([]object)[0]
	limit["quota"] = 1100
	f.mu.Unlock()
	b.click("#form-override button")
	b.await("#ask[open]", "Cancel")
	b.fill("#ask-by", "nora")
	b.click("#ask-yes")
	b.await("#form-override .outcome", "All limits are paused until 15:05:03 UTC.")
	b.await("#form-override [name=limit]", "free/per_hour: now 1,100")
	b.await("#why-answer", "1,100 in 1h")
	if seen := value[bool](b, "(({top, bottom}) => top >= 0 && bottom <= innerHeight)(document.querySelector('#form-override .outcome button').getBoundingClientRect())"); !seen {
		t.Error("the way back is out of sight")
	}
}

// Wherever the reader has scrolled to, the menu says the state.
func TestTheMenuSaysTheState(t *testing.T) {
	for _, window := range []size{desktop, phone} {
		b := open(t, serve(t, down()).URL+"/", window, false)
		b.await("#state", "Database down")
		if shown := value[bool](b, "document.querySelector('#menu-state').checkVisibility()"); shown {
			t.Error("the menu says the state beside the banner")
		}
		value[bool](b, "document.querySelector('#proxies').scrollIntoView(), true")
		b.await("#menu-state", "Database down, values of 14:04:21")
		if seen := value[bool](b, "(({top, bottom}) => top >= 0 && bottom <= 100)(document.querySelector('#menu-state').getBoundingClientRect())"); !seen {
			t.Error("the state is not at the top of the window")
		}
		if covered := value[bool](b, "document.querySelector('#proxies-title').getBoundingClientRect().top < document.querySelector('#menu-state').getBoundingClientRect().bottom"); covered {
			t.Error("the menu covers the section")
		}
		for _, found := range b.axe() {
			t.Error(found)
		}
	}
}

// The lines can be read as a table, and flags of changes do not lie over each other.
func TestTheLinesCanBeReadAsATable(t *testing.T) {
	s := busy()
	s["changes"] = hostile()["changes"] // many
	b := open(t, serve(t, s).URL+"/", phone, false)
	b.await("#chart-time", "last full minute, 14:04")
	b.click("#minutes summary")
	b.await("#minutes tbody tr:nth-child(3)", "14:02\t8")
	if last := value[string](b, "document.querySelector('#minutes tbody tr').innerText"); !strings.HasPrefix(last, "14:04\t") || !strings.HasSuffix(last, "\t0/s") {
		t.Errorf("at 14:05:03 the lines end at %q, want the last full minute", last)
	}
	const overlapping = `[...document.querySelectorAll('.axis .flag')].filter((f, i, all) => i > 0 && f.getBoundingClientRect().left < all[i - 1].getBoundingClientRect().right).length`
	if flags := value[int](b, overlapping); flags > 0 {
		t.Errorf("%d flags of changes lie over another", flags)
	}
	for _, found := range b.axe() {
		t.Error(found)
	}
}
