-- What a replica of this version does for a request: it looks up the key and commits the row.
\set commit random(1, 9000000000000000000)
SELECT digest, completions, expires_at, revoked_at, owner, version, previous_digest, previous_until, project,
        keys.id
    FROM keys, limits_version WHERE keys.id = ANY('{000000000001}'::text[]);
WITH id (id) AS (
        SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
            || substr(digits, 1, 3) || '8' || substr(digits, 4, 15))::uuid FROM md5(random()::text) AS digits
    ), new AS (
        INSERT INTO requests (commit_id, id, key_id, status, code, prompt_tokens, completion_tokens, total_tokens,
            queue_us, search_us, inference_us, total_us, score, scorer, sources, account, runtime, finish_reason,
            project)
        SELECT :commit, id, '000000000001', 200, NULL, 2, 3, 5, 1, NULL, 1, 10, NULL, NULL, NULL, NULL, NULL, NULL, NULL
        FROM id
        ON CONFLICT (id) DO NOTHING RETURNING id, key_id, account, status, total_tokens, inference_us
    ), counted AS (
        INSERT INTO spending AS sums (scope, period, start, slot, requests, tokens, unmeasured)
        SELECT scope, period, 0, 1, count(*), coalesce(sum(total_tokens), 0),
            count(*) FILTER (WHERE total_tokens IS NULL)
        FROM new CROSS JOIN LATERAL (VALUES (key_id), ('@' || account), ('')) AS scopes (scope)
        CROSS JOIN LATERAL (VALUES ('day'), ('month')) AS periods (period)
        WHERE EXISTS (SELECT FROM limits WHERE limits.scope = scopes.scope)
        GROUP BY scope, period ORDER BY scope, period
        ON CONFLICT (scope, period, start, slot) DO UPDATE SET requests = sums.requests + excluded.requests,
            tokens = sums.tokens + excluded.tokens, unmeasured = sums.unmeasured + excluded.unmeasured
    ), released AS (
        DELETE FROM reservations USING new WHERE request = new.id
    )
    INSERT INTO unfolded (commit_id, requests) SELECT :commit, coalesce(array_agg(id), '{}') FROM new;
