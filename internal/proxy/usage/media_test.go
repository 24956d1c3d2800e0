package usage_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"mime/multipart"
	"net/textproto"
	"runtime"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// data has a million bytes in base64.
var data = base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("geese\x00"), 1000000/6))

// inputOf returns the estimate of the input of a body, with data in place of DATA, PNG and PDF.
func inputOf(t *testing.T, body string) int64 {
	t.Helper()
	body = strings.NewReplacer("PNG", "data:image/png;base64,"+data,
		"PDF", "data:application/pdf;base64,"+data,
		"DATA", data).Replace(body)
	p, err := readPrompt("/", nil, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return estimate(&p, body)
}

// estimate returns the estimate of the input of a body.
func estimate(p *usage.Prompt, body string) int64 {
	return option.InputOf(int64(len(body))-p.MediaLength) + p.MediaTokens
}

// A body of many empty blocks takes little memory: media after 10,000 blocks count as text.
func TestManyBlocksAreNotDecoded(t *testing.T) {
	const picture = `{"image_url":{"url":"PNG"}}]}`
	check.Equal(t, "few blocks", inputOf(t, `{"messages":[`+strings.Repeat("0,", 9000)+picture) < 10000, true)
	body := `{"messages":[` + strings.Repeat("0,", 1000000) + picture
	check.Equal(t, "many blocks", inputOf(t, body) > int64(len(body)+len(data))/4, true)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	inputOf(t, body)
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 100 {
		t.Errorf("a body of %d MB takes %d MB, want at most 100", len(body)>>20, took)
	}
}

func TestFormsNameTheirModel(t *testing.T) {
	form := func(fields ...string) (string, string) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		for _, field := range fields {
			_ = w.WriteField(field, "Whisper-"+field)
		}
		h := textproto.MIMEHeader{"Content-Disposition": {`form-data; name="file"; filename="a.mp3"`},
			"Content-Type": {"audio/mpeg"}}
		part, _ := w.CreatePart(h)
		_, _ = part.Write(bytes.Repeat([]byte{1}, 62000))
		_ = w.Close()
		return w.FormDataContentType(), b.String()
	}
	for _, c := range []struct {
		fields []string
		want   string
	}{
		{[]string{"language", "model"}, "Whisper-model <nil> true"},
		{[]string{"MODEL"}, "Whisper-MODEL <nil> true"},
		{[]string{"prompt"}, " <nil> true"},
		{[]string{"model", "prompt", "model"}, "- ambiguous body"},
		{[]string{"model", "Model"}, "- ambiguous body"},
		{[]string{"model", " model"}, "- ambiguous body"},
		{[]string{"model", ""}, "- ambiguous body"},
	} {
		kind, body := form(c.fields...)
		p, err := readPrompt("/v1/audio/transcriptions", []string{kind}, []byte(body))
		got := "- " + fmt.Sprint(err)
		if err == nil {
			input := estimate(&p, body)
			got = fmt.Sprint(p.Model, " ", err, " ", input >= 1000 && input < 1300)
		}
		check.Equal(t, fmt.Sprint(c.fields), got, c.want)
	}
	for body, want := range map[string]string{"model=a&x=1": "a <nil>", "model=a&Model=b": "a ambiguous body",
		"x=%": " ambiguous body"} {
		p, err := readPrompt("/", []string{"application/x-www-form-urlencoded"}, []byte(body))
		if err != nil {
			p.Model = strings.TrimSuffix(want, " ambiguous body")
		}
		check.Equal(t, body, fmt.Sprint(p.Model, " ", err), want)
	}
	kind, body := form("model")
	for what, kinds := range map[string][]string{"two types": {kind, "text/plain"}, "no boundary": {
		"multipart/form-data"}, "another boundary": {"multipart/form-data; boundary=x"}} {
		_, err := readPrompt("/", kinds, []byte(body))
		check.Equal(t, what, fmt.Sprint(err), "ambiguous body")
	}
}
