package page

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// picture is the picture of the page in the documentation. A chunk of text in it has the digest of the page's
// files.
const picture = "../../docs/page.png"

var update = flag.Bool("update", false, "write the picture of the page")

// digestOfThePage returns the chunk of text that names the page's files.
func digestOfThePage(t *testing.T) []byte {
	t.Helper()
	files, err := filepath.Glob("../../admin/page/static/*")
	if err != nil || len(files) == 0 {
		t.Fatal("the page has no files: ", err)
	}
	digest := sha256.New()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		digest.Write(text)
	}
	data := []byte("tEXtSource\x00" + hex.EncodeToString(digest.Sum(nil)))
	chunk := binary.BigEndian.AppendUint32(nil, uint32(len(data)-len("tEXt")))
	chunk = append(chunk, data...)
	return binary.BigEndian.AppendUint32(chunk, crc32.ChecksumIEEE(data))
}

// takePicture writes the picture of the page that b shows, if the flag -update is set.
func (s *site) takePicture(b *tab) {
	s.Helper()
	if !*update {
		return
	}
	cluster.Execute(s.T, s.dsn, fmt.Sprintf(moneySQL, "kim"))
	b.await("#money-list dl", "1,930.50 EUR")
	b.do(chromedp.EmulateViewport(desktop.width, 1900)) // to the first costs of persons
	value[bool](b, "scrollTo(0, 0) === undefined")
	png := result(b, chromedp.CaptureScreenshot())
	b.do(chromedp.EmulateViewport(desktop.width, desktop.height))
	end := len(png) - 12 // the last chunk, which is empty
	png = append(append(png[:end:end], digestOfThePage(s.T)...), png[end:]...)
	if err := os.WriteFile(picture, png, 0o644); err != nil {
		s.Fatal(err)
	}
}

func TestThePictureIsOfTodaysPage(t *testing.T) {
	png, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(png, digestOfThePage(t)) {
		t.Error("docs/page.png shows an older page: run " +
			"TestThePageAnswersTheQuestionsOfANight with -update, and look at the picture")
	}
}
