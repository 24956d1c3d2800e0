package usage_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"mime/multipart"
	"net/textproto"
	"strings"
	"testing"

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
	p, err := usage.ReadPrompt("/", nil, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return p.Input(int64(len(body)))
}

// A picture costs what its provider documents, sound and PDF are estimated by their bytes.
func TestMediaAreNotCountedAsText(t *testing.T) {
	const picture, sound, pdf = 1600, 16129, 250000
	for body, want := range map[string]int64{
		`{"messages":[{"content":[` +
			`{"type":"image_url","image_url":{"url":"PNG"}}]}]}`: picture,
		`{"messages":[{"content":[` +
			`{"type":"image_url","image_url":"PNG"}]}]}`: picture,
		`{"messages":[{"content":[` +
			`{"type":"input_audio","input_audio":{"data":"DATA","format":"wav"}}]}]}`: sound,
		`{"messages":[{"content":[{"type":"file","file":{"file_data":"PDF"}}]}]}`: pdf,
		`{"input":[{"role":"user",` +
			`"content":[{"type":"input_image","image_url":"PNG"}]}]}`: picture,
		`{"input":[{"type":"function_call_output","output":[{"type":"input_file",` +
			`"file_data":"PDF"}]}]}`: pdf,
		`{"input":[{"type":"image_generation_call","result":"DATA"}]}`: picture,
		`{"messages":[{"content":[{"type":"image","source":{"type":"base64","media_type":"image/png",` +
			`"data":"DATA"}}]}]}`: picture,
		`{"messages":[{"content":[` +
			`{"type":"tool_result","content":[{"type":"image","source":{"type":"base64",` +
			`"media_type":"image/png","data":"DATA"}}]}]}]}`: picture,
		`{"messages":[{"content":[` +
			`{"type":"document","source":{"type":"base64","media_type":"application/pdf",` +
			`"data":"DATA"}}]}]}`: pdf,
		`{"contents":[{"parts":[{"inlineData":{"mimeType":"audio/mp3","data":"DATA"}}]}]}`: sound,
		`{"contents":{"parts":[{"inline_data":{"mime_type":"image/png","data":"DATA"}}]}}`: picture,
		`{"content":{"parts":[{"inline_data":{"mime_type":"image/png","data":"DATA"}}]}}`:  picture,
		`{"requests":[{"content":{"parts":[{"inlineData":{"mimeType":"image/png",` +
			`"data":"DATA"}}]}}]}`: picture,
		`{"messages":[{"role":"user","images":["DATA"]}]}`:                                     picture,
		`{"messages":[{"content":[{"image":{"format":"png","source":{"bytes":"DATA"}}}]}]}`:    picture,
		`{"messages":[{"content":[{"document":{"format":"pdf","source":{"bytes":"DATA"}}}]}]}`: pdf,
	} {
		got := inputOf(t, body)
		if got < want || got > want+100 {
			t.Errorf("%s: %d tokens, want %d and some for the text", body, got, want)
		}
	}
}

// A prompt that is hidden at a place that a provider reads as text costs at least a quarter of its bill: of
// 333,000 tokens for a million characters.
func TestTextIsCountedWhereverItHides(t *testing.T) {
	for _, body := range []string{
		`{"messages":[{"content":"PNG"}]}`,
		`{"messages":[{"content":[{"type":"text","text":"PNG"}]}]}`,
		`{"messages":[{"content":[{"type":"text","text":"DATA","image_url":"data:image/png;base64,x"}]}]}`,
		`{"messages":[{"content":[{"type":"document","source":{"type":"text","media_type":"text/plain",` +
			`"data":"DATA"}}]}]}`,
		`{"messages":[{"content":[{"type":"tool_use","input":{"data":"DATA","source":{"type":"base64",` +
			`"media_type":"image/png","data":"DATA"}}}]}]}`,
		`{"messages":[{"content":[{"type":"file","file":{"file_data":"data:text/plain;base64,DATA"}}]}]}`,
		`{"messages":[{"content":[` +
			`{"type":"image_url","image_url":{"url":"data:image/svg+xml;base64,DATA"}}]}]}`,
		`{"contents":[{"parts":[{"inlineData":{"mimeType":"text/plain","data":"DATA"}}]}]}`,
		`{"contents":[{"parts":[{"inlineData":{"mimeType":"application/json","data":"DATA"}}]}]}`,
		`{"contents":[{"parts":[{"functionResponse":{"response":{"inlineData":{"mimeType":"image/png",` +
			`"data":"DATA"}}}}]}]}`,
		`{"tools":[{"function":{"parameters":{"image":{"format":"png","source":{"bytes":"DATA"}}}}}]}`,
		`{"input":"PNG"}`,
		`{"input":["DATA"],"images":[]}`,
		`{"system":[{"type":"text","text":"DATA","source":{"type":"base64","media_type":"image/png"}}]}`,
		`{"messages":[{"content":[{"document":{"format":"txt","source":{"bytes":"DATA"}}}]}]}`,
		`{"metadata":{"messages":[{"content":[{"image_url":"PNG"}]}]}}`,
	} {
		if got := inputOf(t, body); got < 333000/4 {
			t.Errorf("%s: %d tokens, want a quarter of 333,000", body, got)
		}
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
	} {
		kind, body := form(c.fields...)
		p, err := usage.ReadPrompt("/v1/audio/transcriptions", []string{kind}, []byte(body))
		got := "- " + fmt.Sprint(err)
		if err == nil {
			input := p.Input(int64(len(body)))
			got = fmt.Sprint(p.Model, " ", err, " ", input >= 1000 && input < 1300)
		}
		check.Equal(t, fmt.Sprint(c.fields), got, c.want)
	}
	for body, want := range map[string]string{"model=a&x=1": "a <nil>", "model=a&Model=b": "a ambiguous body",
		"x=%": " ambiguous body"} {
		p, err := usage.ReadPrompt("/", []string{"application/x-www-form-urlencoded"}, []byte(body))
		if err != nil {
			p.Model = strings.TrimSuffix(want, " ambiguous body")
		}
		check.Equal(t, body, fmt.Sprint(p.Model, " ", err), want)
	}
	kind, body := form("model")
	for what, kinds := range map[string][]string{"two types": {kind, "text/plain"}, "no boundary": {
		"multipart/form-data"}, "another boundary": {"multipart/form-data; boundary=x"}} {
		_, err := usage.ReadPrompt("/", kinds, []byte(body))
		check.Equal(t, what, fmt.Sprint(err), "ambiguous body")
	}
}
