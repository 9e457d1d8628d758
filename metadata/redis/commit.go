package redis

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/mooncake-agent/mooncake/metadata"
)

// commitScript checks all conditions before it writes anything; Redis runs a script without interruption.
// For KEYS[i] the arguments are the condition ("" none, "-" absent, else the SHA-1 of the value), "p" or
// "d", and the value. It returns 0, or the index of the first key whose condition does not hold.
var commitScript = redis.NewScript(`
for i, key in ipairs(KEYS) do
  local want = ARGV[3*i-2]
  if want ~= '' then
    local now = redis.call('GET', key)
    if want == '-' then
      if now then return i end
    elseif not now or redis.sha1hex(now) ~= want then
      return i
    end
  end
end
for i, key in ipairs(KEYS) do
  if ARGV[3*i-1] == 'd' then
    redis.call('DEL', key)
  else
    redis.call('SET', key, ARGV[3*i])
  end
end
return 0`)

// Commit implements metadata.Committer.
func (b *Backend) Commit(ctx context.Context, writes ...metadata.Write) error {
	if err := b.target.CheckWrites(writes); err != nil {
		return err
	}
	req := request{op: "commit", prefix: true}
	keys := make([]string, 0, len(writes))
	args := make([]any, 0, 3*len(writes))
	for _, w := range writes {
		req.size = max(req.size, len(w.Value))
		keys = append(keys, w.Key)
		want, op := "", "p"
		if w.If != nil {
			if want = *w.If; want == "" {
				want = "-"
			}
		}
		if w.Delete {
			op = "d"
		}
		args = append(args, want, op, w.Value)
	}
	failed := 0
	err := b.call(ctx, req, func(ctx context.Context) error {
		if len(writes) == 0 {
			return nil
		}
		var err error
		failed, err = commitScript.Run(ctx, b.client, keys, args...).Int()
		if err == nil && failed > 0 {
			err = metadata.ErrConflict
		}
		return err
	})
	if failed > 0 {
		return b.target.Fail("commit", keys[failed-1], metadata.ErrConflict, nil)
	}
	return err
}
